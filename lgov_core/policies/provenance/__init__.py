"""The ``provenance`` policy: values must come from the user."""
