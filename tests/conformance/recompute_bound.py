"""recast-bound's certificates pass recast-check-bound, and no certificate passes for a claim that is false.

The problems are tiny, so that a search over all states finds the true optimum here. Of each certificate the claim is
raised to one above it, and numbers and words of the proof are changed at random: every such file must be refused.
"""
import heapq
import random

import kit

PROBLEMS = 60
BUDGETS = (95, 85, 75)  # Percent of the plain peak.
FORGERIES = 12
VIRTUAL = set("OYBDWAU")  # Rows of virtual events.


def random_problem(rng):
    """(tensors: (bytes, kept), nodes: (cost, workspace, repeatable, reads, writes, overwrites))."""
    tensors, nodes = [], []
    count = rng.randint(4, 8)
    for v in range(count):
        # A backward half that reads the forward half from its end, and some random reads.
        partner = {v - 1} | ({count - 1 - v} if v >= count // 2 else set())
        known = len(tensors)
        reads = [t for t in range(known) if rng.random() < (0.8 if t in partner else 0.1)]
        writes, overwrites = [], []
        for _ in range(rng.choice((1, 1, 1, 2))):
            writes.append(len(tensors))
            tensors.append((rng.randint(1, 9), rng.random() < 0.1))
            if not overwrites:
                overwrites = [t for t in reads if tensors[t][0] == tensors[-1][0] and rng.random() < 0.4][:1]
        workspace = rng.randint(0, 5) if rng.random() < 0.25 else 0
        nodes.append((rng.randint(0, 7), workspace, rng.random() < 0.85, reads, writes, overwrites))
    return tensors, nodes


def text(tensors, nodes):
    lines = [f"recast-remat {len(nodes)} {len(tensors)}"] + [f"{size} {int(kept)}" for size, kept in tensors]
    for cost, workspace, repeatable, *lists in nodes:
        lines.append(" ".join(map(str, [cost, workspace, int(repeatable)] + [n for l in lists for n in [len(l), *l]])))
    return "\n".join(lines) + "\n"


def optimum(tensors, nodes, budget):
    """The least cost beyond the plain one, or None. A state: how many nodes have run, and the tensors that are held."""
    kept = frozenset(t for t, (_, is_kept) in enumerate(tensors) if is_kept)
    queue, done = [(0, 0, ())], set()
    while queue:
        cost, count, held = heapq.heappop(queue)
        if (count, held) in done:
            continue
        done.add((count, held))
        held = frozenset(held)
        if count == len(nodes) and kept <= held:
            return cost
        for t in held:
            heapq.heappush(queue, (cost, count, tuple(sorted(held - {t}))))
        for v in range(min(count + 1, len(nodes))):
            run_cost, workspace, repeatable, reads, writes, overwrites = nodes[v]
            if not held.issuperset(reads) or (v < count and not repeatable):
                continue
            # Only a tensor that this run overwrites need be dropped with it: others may go afterwards.
            for dropped in ([], overwrites) if overwrites else ([],):
                live = (held | set(writes)) - set(dropped)
                if sum(tensors[t][0] for t in live) + workspace <= budget:
                    extra = run_cost if v < count else 0
                    heapq.heappush(queue, (cost + extra, max(count, v + 1), tuple(sorted(live))))
    return None


def random_events(rng, nodes):
    """First runs that follow each other, with virtual events of nodes that can repeat between them; 'recast-bound --help'."""
    begin = rng.randrange(len(nodes) - 1)
    events = []
    for v in range(begin, rng.randint(begin + 1, len(nodes) - 1) + 1):
        events.append(str(v))
        for _ in range(rng.randint(0, 2) if v + 1 < len(nodes) else 0):
            last = [w for w in range(v + 1) if nodes[w][2] and rng.random() < 0.5]
            events += [",".join(map(str, [v, *last]))] if last else []
    while "," in events[-1]:
        events.pop()
    return " ".join(events)


def forge(rng, certificate, claim):
    """The certificate for another claim, with some numbers of its proof changed."""
    lines = certificate.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("claim"))
    lines[at] = f"claim {claim}"
    events = next(i for i, line in enumerate(lines) if line.startswith("events"))
    special = [events] + [i for i, line in enumerate(lines) if line.split()[0] in VIRTUAL]
    for _ in range(rng.randint(0, 4)):
        # The sets of virtual events and the multipliers of their rows as often as all else.
        i = rng.choice(special) if rng.random() < 0.5 else rng.randrange(at + 1, len(lines))
        words = lines[i].split()
        numbers = [j for j, word in enumerate(words) if word.lstrip("-").isdigit()]
        if numbers:
            j = rng.choice(numbers)
            value = int(words[j])
            words[j] = str(rng.choice((value + 1, value - 1, -value, value * 2, value * 1000, 0)))
        lines[i] = " ".join(words)
    return "\n".join(lines) + "\n"


def main():
    test = kit.Test(__doc__)
    rng = random.Random(1)
    bounds = refused = forged = unreachable = tight = virtual = 0
    for i in range(PROBLEMS):
        tensors, nodes = random_problem(rng)
        problem, proof, false = test.temp / "problem", test.temp / "proof", test.temp / "false"
        problem.write_text(text(tensors, nodes))
        for percent in BUDGETS:
            flags = [f"--events={random_events(rng, nodes)}"] if rng.random() < 0.7 else []
            said = test.tool("recast-bound", problem, percent, f"--certificate={proof}", *flags).stdout.split()
            budget, claim = int(said[0]), said[1]
            least = optimum(tensors, nodes, budget)
            checked = test.tool("recast-check-bound", problem, proof, ok=False)
            if checked.returncode != 0:
                test.check(False, f"problem {i}, {percent} %: {checked.stderr.strip()}")
            if least is not None and (claim == "unreachable" or int(claim) > least):
                test.check(False, f"problem {i}, {percent} %: claims {claim}, and the optimum is {least}")
            bounds += 1
            is_virtual = any(line.split()[0] in VIRTUAL for line in proof.read_text().splitlines())
            virtual += is_virtual
            tight += least is not None and 0 < int(claim) == least
            if least is None:
                unreachable += 1
                continue
            for claim in [least + 1] * FORGERIES * (20 if is_virtual else 1) + ["unreachable"]:
                false.write_text(forge(rng, proof.read_text(), claim))
                forged += 1
                refused += test.tool("recast-check-bound", problem, false, ok=False).returncode == 1
    test.check(bounds == PROBLEMS * len(BUDGETS), f"{bounds} bounds are proven, {tight} of them positive and the optimum, {unreachable} budgets unreachable")
    test.check(virtual > 0, f"{virtual} proofs use rows of virtual events")
    test.check(forged > 0 and refused == forged, f"{refused} of {forged} certificates for false claims are refused")
    test.finish()


if __name__ == "__main__":
    main()
