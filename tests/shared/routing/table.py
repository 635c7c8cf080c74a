"""The specification's table, written as it is there: what every other answer is compared with."""

from shared.routing.syntax import Wildcards

SLASHES = Wildcards(separator=b"/", any_levels=b"*", one_level=b"+")
DOTS = Wildcards(separator=b".", any_levels=b"#", one_level=b"*", empty_level=False)


def table_matches(wildcards: Wildcards, pattern: bytes, name: bytes) -> bool:
    """dp[i][j]: the first i levels of the pattern match the first j levels of the name."""
    subscription, topic = (
        text.split(wildcards.separator) if text or wildcards.empty_level else [] for text in (pattern, name)
    )
    dp = [[False] * (len(topic) + 1) for _ in range(len(subscription) + 1)]
    dp[0][0] = True
    for i in range(1, len(subscription) + 1):
        dp[i][0] = dp[i - 1][0] and subscription[i - 1] == wildcards.any_levels
        for j in range(1, len(topic) + 1):
            if subscription[i - 1] == wildcards.any_levels:
                dp[i][j] = dp[i - 1][j] or dp[i][j - 1]
            elif subscription[i - 1] == wildcards.one_level:
                dp[i][j] = dp[i - 1][j - 1]
            else:
                dp[i][j] = dp[i - 1][j - 1] and subscription[i - 1] == topic[j - 1]
    return dp[len(subscription)][len(topic)]
