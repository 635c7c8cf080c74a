"""The page of the admin port: HTML that the server makes, one style sheet, a little JavaScript, no build.

`files` has what browsers load beside it, `login` the form, `shown` how values are written, and `views` all
else. A view reads what the API reads. Where scripts run, a view that is open asks for itself again, changes
what has changed, and calls the API's actions.
"""
