// A lower bound on the cost of recomputing, with a proof that a small program checks (bench/CheckBound.cpp).
#pragma once
#include "passes/checkpoint/remat/bound/Relaxation.h"
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace recast::remat {

/// sum of factor * column <= limit over columns of an event's memory row: whatever fits that row keeps it, which a
/// dynamic program over the factors checks.
struct KnapsackCut {
  int event; ///< Index into the events.
  int64_t limit;
  std::vector<std::pair<Column, int64_t>> terms;
};

/// Times a row. Integers in units of 2^-scaleBits of the problem's unit of cost; `cut` is an index or -1.
struct Multiplier {
  RowKind kind;
  int index, other, span, cut;
  int64_t value;
};

/// A case of the proof: the box of points that its ancestors' branches leave, and what follows for single columns. Each
/// of `proofs` is a sum of rows; by weak duality it bounds the cost of every point of the box, and a column whose
/// reduced cost lifts that bound to the claim is fixed. Propagation through single rows fixes more. Where there is no
/// `branch`, this proves the claim; else cases `child` (branch = 0) and `child + 1` (branch = 1) do.
struct ProofCase {
  std::vector<std::vector<Multiplier>> proofs;
  std::optional<Column> branch;
  int child = -1;
};

struct Certificate {
  int64_t budgetBytes = 0;
  int64_t extraCost = 0;      ///< The claim: no schedule within the budget costs less beyond the plain cost.
  bool isUnreachable = false; ///< The claim instead: no schedule is within the budget.
  int scaleBits = 0;
  std::vector<Event> events;
  std::vector<Span> spans; ///< Beside the gaps.
  std::vector<KnapsackCut> cuts;
  std::vector<ProofCase> cases; ///< The first is the root. None: the claim is zero.
};

struct BoundOptions {
  /// Work: simplex iterations times rows. The same number gives the same bound on every machine.
  int64_t effort = 1'000'000'000;
  double seconds = 0; ///< Of wall-clock time; 0: no limit.
  /// The extra cost of a known schedule within the budget. The search ends when it is proven to be the least, and is
  /// much faster for knowing it.
  std::optional<int64_t> knownCost = std::nullopt;
  /// (plain + knownCost) / (plain + bound) - 1 at which the search ends, too: the last thousandth takes longest.
  double enough = 0;
  /// Not empty: only these, and no search for better ones. They are as Event says, without the end of time.
  std::vector<Event> events = {};
};

struct Bound {
  int64_t extraCost = 0;      ///< Of no meaning where the budget is unreachable.
  bool isUnreachable = false; ///< Proven: no schedule is within the budget.
  Certificate certificate;
};

/// Preconditions: costs and bytes are not negative, each tensor has one writer. Valid for every schedule of Problem.h:
/// first runs in order, other runs at any time. Nothing is claimed, an extra cost of 0, where there are fetches.
Bound lowerBound(const Problem &problem, int64_t budgetBytes, const BoundOptions &options = {});

/// The peak of the plain order.
int64_t plainPeakBytes(const Problem &problem);

/// No schedule's peak is smaller. The certificate, where its claim is not zero, says so for one byte less.
struct Floor {
  int64_t peakBytes = 0;
  Certificate certificate;
};
Floor lowerBoundOfPeak(const Problem &problem, const BoundOptions &options = {});

/// The text that bench/CheckBound reads; its format is described there.
std::string print(const Certificate &certificate);

} // namespace recast::remat
