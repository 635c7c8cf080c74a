"""Users and their logins: the users file, and how passwords are checked."""
