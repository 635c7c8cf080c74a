"""The page of the admin port: HTML made by the server, one style sheet, a little JavaScript, no build step.

`files` has the static files, `shown` the formatting of values, and `views` the rest. A view reads the same
data as the API. With JavaScript, an open view reloads itself, updates what changed, and calls the API's
actions.
"""
