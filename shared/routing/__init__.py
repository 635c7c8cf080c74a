"""Who wants this name: one index of subscriptions for every protocol."""
