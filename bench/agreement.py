"""How well predictions agree with what was measured: the rules of issue 7. Values are by plan, in the same order."""
import itertools
import statistics

AA_LIMIT, PAIRS_GOAL, MEDIAN_GOAL, WORST_GOAL = 0.05, 0.95, 0.15, 0.30


def errors(predicted, measured):
    """Relative, of times; positive: it took less than predicted."""
    return [p / m - 1 for p, m in zip(predicted, measured)]


def pairs_in_order(predicted, measured, aa_spread):
    """(pairs measured in the predicted order, pairs that count): those whose predictions differ by more than twice the
    spread of one plan measured against itself."""
    right = n = 0
    for (p, m), (q, k) in itertools.combinations(zip(predicted, measured), 2):
        if max(p, q) / min(p, q) - 1 <= 2 * aa_spread:
            continue
        n += 1
        right += (p < q) == (m < k)
    return right, n


def is_slower(ours, theirs, aa_spread):
    """Tokens a second: beyond noise, which is twice the spread, as for pairs."""
    return ours * (1 + 2 * aa_spread) < theirs


def ranks(values):
    """From 1; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    out, at = [0.0] * len(values), 0
    for _, group in itertools.groupby(order, key=lambda i: values[i]):
        group = list(group)
        for i in group:
            out[i] = at + (len(group) + 1) / 2
        at += len(group)
    return out


def spearman(a, b):
    """0 if all of either are equal."""
    x, y = ranks(a), ranks(b)
    mx, my = statistics.mean(x), statistics.mean(y)
    sx, sy = sum((v - mx) ** 2 for v in x), sum((v - my) ** 2 for v in y)
    return sum((v - mx) * (w - my) for v, w in zip(x, y)) / (sx * sy) ** 0.5 if sx and sy else 0.0


def lines(predicted, measured, aa_spread):
    """What is to be said of them, goals beside."""
    sizes = [abs(e) for e in errors(predicted, measured)]
    right, n = pairs_in_order(predicted, measured, aa_spread)
    share = right / n if n else 1.0
    median, worst = statistics.median(sizes), max(sizes)

    def goal(text, ok):
        return f"{text}: {'met' if ok else 'NOT met'}"
    yield f"{len(predicted)} plans, A/A spread {100 * aa_spread:.1f}%"
    yield goal(f"order: {right} of {n} pairs, {100 * share:.1f}% (goal {100 * PAIRS_GOAL:.0f}%)", share >= PAIRS_GOAL)
    yield goal(f"median error {100 * median:.1f}% (goal {100 * MEDIAN_GOAL:.0f}%)", median <= MEDIAN_GOAL)
    yield goal(f"worst error {100 * worst:.1f}% (goal {100 * WORST_GOAL:.0f}%)", worst <= WORST_GOAL)
    yield f"Spearman {spearman(predicted, measured):.3f}"
