"""The commands of ``lgov``, one module each. A module is imported when its command is called."""
