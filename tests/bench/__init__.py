"""For who develops: servers beside their peers, beside those of another commit, beside a bare loop."""
