"""Agent Lightning's store API, served by the endpoint."""
