"""The ``sql`` policy: which statements a database tool may run, judged on the syntax tree."""
