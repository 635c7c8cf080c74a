"""Echo: what you say comes back. A whole protocol in one folder, for a test to install and serve."""
