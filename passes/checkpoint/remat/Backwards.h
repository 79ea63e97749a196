// Steps back in time: what must be live before a run so that given tensors are live after it.
#pragma once
#include "passes/checkpoint/remat/Problem.h"
#include <cstddef>
#include <cstdint>
#include <vector>

namespace recast::remat {

/// Tensors that are live together, sorted.
using LiveSet = std::vector<int>;

struct LiveSetHash {
  size_t operator()(const LiveSet &set) const;
};

void insert(LiveSet &set, int tensor);

class Backwards {
public:
  explicit Backwards(const Problem &problem);

  /// The run that makes a tensor again: a fetch where there is one, which needs nothing else, or its writer's.
  int source(int tensor) const { return Source[tensor]; }
  /// What a number in a schedule stands for.
  const Node &run(int number) const { return All[number]; }
  int64_t bytes(const LiveSet &set) const;
  /// What is live when `node` runs and `after` stays live, its workspace included; without what is held.
  int64_t need(const Node &node, const LiveSet &after) const;
  /// What is live before a run and still needed, so that `after` is live after it.
  LiveSet before(int run, const LiveSet &after) const;
  /// Steps back as long as a run only takes tensors out of the set and needs at most `limit`: no other way back needs
  /// less. Calls `step(run, before)` for each; only tensors that `mayRun` says yes to are made again.
  template <typename MayRun, typename Step> void shrink(LiveSet &set, int64_t limit, MayRun mayRun, Step step) const {
    for (size_t i = set.size(); i-- > 0;) {
      int run = Source[set[i]];
      if (!mayRun(set[i]) || !readsOnly(run, set) || need(All[run], set) > limit)
        continue;
      set = before(run, set);
      step(run, set);
      i = set.size(); // A tensor that was read by what is gone now may go, too.
    }
  }

  /// Held tensors are live at any time and count nowhere.
  void hold(int tensor, bool isHeld) { Held[tensor] = isHeld; }
  bool isHeld(int tensor) const { return Held[tensor]; }

private:
  /// Whether all that a run reads is in the set or held.
  bool readsOnly(int run, const LiveSet &set) const;

  const Problem &P;
  std::vector<Node> All; ///< By number in a schedule.
  std::vector<int> Source;
  std::vector<char> Held;
};

} // namespace recast::remat
