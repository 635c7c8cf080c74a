"""Shipping: everything acknowledged goes to a bucket, in one order over all protocols. See SHIP.md here."""
