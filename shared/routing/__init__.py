"""One index of subscriptions for every protocol: which subscribers match a name."""
