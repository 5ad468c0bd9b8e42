"""``python -m lgov_core.server``."""

from lgov_core.server.command import server_command

if __name__ == "__main__":
    server_command(prog_name="python -m lgov_core.server")
