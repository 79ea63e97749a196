#include "runtime/fusion/Schedule.h"
#include <algorithm>
#include <map>

namespace recast::fusion {

namespace {

constexpr size_t kAlignment = 64;
/// Elements of a row where nothing asks for another length.
constexpr int64_t kBlockElems = 4096;
/// Full reductions of up to this many elements run as one row.
constexpr int64_t kSingleRowElems = 4096;
/// Parts that a reduction across rows is cut into: more where they are small.
constexpr int64_t kMostChunks = 64, kFewChunks = 8, kSmallPartElems = 64;
/// A part takes memory, and its sum another pass: each must hold this many elements for one of the result.
constexpr int64_t kLeastPerChunk = 4;

struct SpaceKey {
  int stage;
  int64_t count;
  auto operator<=>(const SpaceKey &) const = default;
};

class Scheduler {
public:
  Scheduler(const Region &region, Program &program, std::string &reason)
      : region(region), program(program), reason(reason) {}
  bool run();

private:
  struct Draft {
    Phase phase;
    int64_t row = 0; ///< Length that reductions of rows ask for.
    std::map<std::pair<int, std::vector<std::array<int64_t, 3>>>, int> known;
    std::vector<std::pair<int, int>> wanted; ///< Values, and slots or outputs that they are stored to.
    std::vector<bool> wantedIsSlot;
    std::vector<std::pair<int, int>> reductions; ///< Values (reductions across), and their slots.
  };

  bool fail(std::string why) {
    if (reason.empty())
      reason = std::move(why);
    return false;
  }
  void findStages();
  Draft &draft(int stage, int64_t count);
  void want(int value, bool isSlot, int index);
  int slotFor(int value, bool isReduction);
  bool fill(SpaceKey key, Draft &draft);
  int evaluate(int value, const Map &map, SpaceKey key, Draft &draft);
  int reduction(int value, const Map &map, SpaceKey key, Draft &draft);
  int add(Draft &draft, Node node) {
    draft.phase.nodes.push_back(std::move(node));
    return static_cast<int>(draft.phase.nodes.size()) - 1;
  }
  bool chooseInner(Draft &draft);
  void setLevels(Draft &draft);
  int64_t chunksOf(int value) const;

  const Expr &at(int value) const { return region.values[static_cast<size_t>(value)]; }

  const Region &region;
  Program &program;
  std::string &reason;
  std::vector<int> stages;
  std::vector<int64_t> spaces; ///< Of each value: the elements of the loop that must compute it.
  std::map<SpaceKey, Draft> drafts;
  std::map<int, int> slots; ///< Of values.
};

void Scheduler::findStages() {
  std::vector<bool> isOfRow; // Needs a reduction of a row of its space.
  for (const Expr &value : region.values) {
    int stage = 0;
    int64_t space = value.elems();
    bool ofRow = false;
    for (int arg : value.args)
      space = std::max(space, spaces[static_cast<size_t>(arg)]);
    for (int arg : value.args) {
      auto a = static_cast<size_t>(arg);
      // What rows of another length give is written down in a loop of its own.
      bool isElsewhere = isOfRow[a] && spaces[a] != space;
      stage = std::max(stage, stages[a] + (isElsewhere ? 1 : 0));
      ofRow |= isOfRow[a] && !isElsewhere;
    }
    if (isReduction(value.op)) {
      auto x = static_cast<size_t>(value.args[0]);
      bool isRow = formOf(at(value.args[0]).dims, value.axes).kind == ReductionForm::Row;
      // What a row gives is written down before it is reduced in its turn.
      bool isDirect = spaces[x] == at(value.args[0]).elems();
      stage = stages[x] + (isDirect ? 0 : 1) + (isRow ? 0 : 1);
      space = isRow ? at(value.args[0]).elems() : value.elems();
      ofRow = isRow;
    }
    stages.push_back(stage);
    spaces.push_back(space);
    isOfRow.push_back(ofRow);
  }
}

Scheduler::Draft &Scheduler::draft(int stage, int64_t count) {
  Draft &found = drafts[{stage, count}];
  found.phase.count = count;
  return found;
}

void Scheduler::want(int value, bool isSlot, int index) {
  Draft &producer = draft(stages[static_cast<size_t>(value)], spaces[static_cast<size_t>(value)]);
  producer.wanted.push_back({value, index});
  producer.wantedIsSlot.push_back(isSlot);
}

int64_t Scheduler::chunksOf(int value) const {
  const Expr &result = at(value);
  int64_t perElement = at(result.args[0]).elems() / result.elems();
  int64_t most = result.elems() <= kSmallPartElems ? kMostChunks : kFewChunks;
  return std::clamp<int64_t>(perElement / kLeastPerChunk, 1, most);
}

/// The slot of a value that a later phase needs; asks an earlier phase to fill it.
int Scheduler::slotFor(int value, bool isAcross) {
  auto [found, isNew] = slots.try_emplace(value, static_cast<int>(program.slots.size()));
  if (!isNew)
    return found->second;
  program.slots.push_back({at(value).type, at(value).elems(), isAcross ? chunksOf(value) : 1, 0});
  int slot = found->second;
  if (!isAcross) {
    want(value, /*isSlot=*/true, slot);
    return slot;
  }
  int x = at(value).args[0];
  bool isDirect = spaces[static_cast<size_t>(x)] == at(x).elems();
  draft(stages[static_cast<size_t>(x)] + (isDirect ? 0 : 1), at(x).elems()).reductions.push_back({value, slot});
  return slot;
}

int Scheduler::reduction(int value, const Map &map, SpaceKey key, Draft &draft) {
  const Expr &v = at(value);
  int x = v.args[0];
  ReductionForm form = formOf(at(x).dims, v.axes);
  if (form.kind == ReductionForm::Across) {
    if (key.stage < stages[static_cast<size_t>(value)])
      return fail("a reduction is read in the loop that makes it"), -1;
    return add(draft, {Node::Combine, v.op, v.type, {}, map, slotFor(value, true)});
  }
  int64_t count = at(x).elems();
  if (form.kind == ReductionForm::Row && key.count == count && map == canonical({{form.row, count / form.row, 1}})) {
    if (draft.row && draft.row != form.row)
      return fail("rows of different lengths"), -1;
    draft.row = form.row;
    if (spaces[static_cast<size_t>(x)] != count)
      slotFor(x, false);
    int arg = evaluate(x, identity(count), key, draft);
    if (arg < 0)
      return -1;
    return add(draft, {Node::Reduce, v.op, v.type, {arg}});
  }
  if (form.kind == ReductionForm::None || key.stage <= stages[static_cast<size_t>(value)])
    return fail("a reduction whose rows are others than the loop's"), -1;
  return add(draft, {Node::Slot, Op::Input, v.type, {}, map, slotFor(value, false)});
}

/// The node that is `value` at the elements that `map` numbers; -1 on failure.
int Scheduler::evaluate(int value, const Map &map, SpaceKey key, Draft &draft) {
  const Expr &v = at(value);
  if (v.op == Op::View)
    return evaluate(v.args[0], map, key, draft);
  std::vector<std::array<int64_t, 3>> digits;
  for (const Digit &digit : map)
    digits.push_back({digit.div, digit.size, digit.stride});
  auto known = draft.known.find({value, digits});
  if (known != draft.known.end())
    return known->second;
  int node = -1;
  bool isSpilled = key.stage > stages[static_cast<size_t>(value)] && slots.contains(value);
  if (isReduction(v.op)) {
    node = reduction(value, map, key, draft);
  } else if (isSpilled) {
    node = add(draft, {Node::Slot, Op::Input, v.type, {}, map, slots.at(value)});
  } else if (v.op == Op::Input) {
    node = add(draft, {Node::Load, Op::Input, v.type, {}, map, v.index});
  } else if (v.op == Op::Constant || v.op == Op::Counter) {
    node = add(draft, {Node::Compute, v.op, v.type, {}, v.op == Op::Counter ? map : Map(), 0, v.number, v.integer});
  } else {
    std::vector<int> args;
    for (int arg : v.args) {
      std::optional<Map> inner = compose(map, broadcast(at(arg).dims, v.dims));
      if (!inner)
        return fail("shapes that do not divide each other"), -1;
      args.push_back(evaluate(arg, *inner, key, draft));
      if (args.back() < 0)
        return -1;
    }
    if (v.op == Op::Expand)
      node = args[0];
    else
      node = add(draft, {Node::Compute, v.op, v.type, std::move(args)});
  }
  draft.known[{value, digits}] = node;
  return node;
}

bool Scheduler::fill(SpaceKey key, Draft &draft) {
  for (auto [value, slot] : draft.reductions) {
    const Expr &v = at(value);
    int x = v.args[0];
    int node = -1;
    if (spaces[static_cast<size_t>(x)] != at(x).elems())
      node = add(draft, {Node::Slot, Op::Input, at(x).type, {}, identity(key.count), slotFor(x, false)});
    else
      node = evaluate(x, identity(key.count), key, draft);
    if (node < 0)
      return false;
    draft.phase.accumulations.push_back({node, v.op, slot, keptMap(at(x).dims, v.axes)});
  }
  for (size_t i = 0; i < draft.wanted.size(); ++i) {
    auto [value, index] = draft.wanted[i];
    int64_t elems = at(value).elems();
    if (key.count % elems)
      return fail("a result that is no part of its loop");
    Map map = canonical({{key.count / elems, elems, 1}});
    int node = evaluate(value, map, key, draft);
    if (node < 0)
      return false;
    draft.phase.stores.push_back({node, draft.wantedIsSlot[i], index, std::move(map)});
  }
  if (!chooseInner(draft))
    return false;
  setLevels(draft);
  return true;
}

/// Calls visit(map) for every map of the phase.
template <typename Visit> void forEachMap(const Phase &phase, Visit visit) {
  for (const Node &node : phase.nodes)
    visit(node.map);
  for (const Store &store : phase.stores)
    visit(store.map);
  for (const Accumulation &accumulation : phase.accumulations)
    visit(accumulation.kept);
}

bool Scheduler::chooseInner(Draft &draft) {
  Phase &phase = draft.phase;
  int64_t inner = phase.count;
  forEachMap(phase, [&](const Map &map) {
    for (const Digit &digit : map)
      for (int64_t bound : {digit.div, digit.div * digit.size})
        if (bound > 1)
          inner = std::min(inner, bound);
  });
  if (draft.row && inner < draft.row)
    return fail("operands that change their step within a row");
  if (draft.row)
    inner = draft.row;
  bool fits = phase.count % inner == 0;
  forEachMap(phase, [&](const Map &map) {
    for (const Digit &digit : map) {
      int64_t end = digit.div * digit.size;
      fits &= digit.div >= inner ? digit.div % inner == 0 : digit.div == 1 && digit.stride == 1 && end % inner == 0;
    }
  });
  if (!fits)
    return fail("operands whose steps do not divide each other");
  phase.inner = inner;
  for (const Accumulation &accumulation : phase.accumulations) {
    const Map &kept = accumulation.kept;
    int64_t asked = kept.empty() ? phase.count : kept[0].div > 1 ? kept[0].div : kept[0].size;
    if (inner != asked)
      return fail("a reduction across rows of another length");
  }
  if (!draft.row && inner == phase.count && inner > kBlockElems)
    phase.inner = kBlockElems;
  int64_t chunks = 0;
  for (const Accumulation &accumulation : phase.accumulations) {
    int64_t own = program.slots[static_cast<size_t>(accumulation.slot)].chunks;
    if (chunks && own != chunks)
      return fail("reductions in different numbers of chunks");
    chunks = own;
  }
  if (chunks) {
    phase.rowsPerRange = (phase.rows() + chunks - 1) / chunks;
    for (const Accumulation &accumulation : phase.accumulations)
      program.slots[static_cast<size_t>(accumulation.slot)].chunks = phase.ranges();
  }
  return true;
}

void Scheduler::setLevels(Draft &draft) {
  Phase &phase = draft.phase;
  auto levelOf = [&](const Map &map) {
    if (map.empty())
      return Level::Scalar;
    return map[0].div < phase.inner ? Level::Element : Level::Row;
  };
  for (Node &node : phase.nodes) {
    node.level = levelOf(node.map);
    for (int arg : node.args) {
      node.level = std::max(node.level, phase.nodes[static_cast<size_t>(arg)].level);
      node.pass = std::max(node.pass, phase.nodes[static_cast<size_t>(arg)].pass);
    }
    if (node.kind == Node::Reduce) {
      node.level = Level::Row;
      ++node.pass;
    }
    phase.passes = std::max(phase.passes, node.pass + 1);
  }
}

bool Scheduler::run() {
  findStages();
  for (size_t k = 0; k < region.outputs.size(); ++k)
    want(region.outputs[k], /*isSlot=*/false, static_cast<int>(k));
  // What a phase asks of others it asks of earlier stages: late ones first.
  while (true) {
    Draft *next = nullptr;
    SpaceKey key{-1, 0};
    for (auto &[at, candidate] : drafts)
      if (candidate.phase.inner == 0 && at.stage >= key.stage) {
        next = &candidate;
        key = at;
      }
    if (!next)
      break;
    if (!fill(key, *next))
      return false;
  }
  for (auto &[key, draft] : drafts)
    program.phases.push_back(std::move(draft.phase));
  for (SlotInfo &slot : program.slots) {
    slot.offset = program.workspaceBytes;
    size_t bytes = static_cast<size_t>(slot.elems * slot.chunks) * byteSize(slot.type);
    program.workspaceBytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return true;
}

} // namespace

ReductionForm formOf(std::span<const int64_t> dims, std::span<const int64_t> axes) {
  int64_t count = elementCount(dims);
  Map kept = keptMap(dims, axes);
  int64_t left = 1;
  for (const Digit &digit : kept)
    left *= digit.size;
  if (kept.empty())
    return count <= kSingleRowElems ? ReductionForm{ReductionForm::Row, count} : ReductionForm{ReductionForm::Across};
  const Digit &last = kept.back();
  if (kept.size() == 1 && last.stride == 1 && last.div > 1 && last.div * last.size == count)
    return {ReductionForm::Row, last.div};
  // Chunks of rows must each meet all of the result.
  if (last.div * last.size == count || left * kLeastPerChunk > count)
    return {};
  return {ReductionForm::Across, kept[0].div > 1 ? kept[0].div : kept[0].size};
}

bool schedule(const Region &region, Program &program, std::string &reason) {
  return Scheduler(region, program, reason).run();
}

std::vector<InPlace> inPlaceOf(const Program &program, size_t inputs, size_t outputs) {
  std::vector<InPlace> pairs;
  for (size_t p = 0; p < program.phases.size(); ++p)
    for (const Store &store : program.phases[p].stores) {
      if (store.isSlot)
        continue;
      std::vector<bool> isRead(inputs), isBlocked(inputs);
      for (size_t q = 0; q < program.phases.size(); ++q)
        for (const Node &node : program.phases[q].nodes)
          if (node.kind == Node::Load) {
            // Earlier phases have read all of it; this one reads each element before it writes there.
            isRead[static_cast<size_t>(node.index)] = true;
            if (q > p || (q == p && node.map != store.map))
              isBlocked[static_cast<size_t>(node.index)] = true;
          }
      for (size_t j = 0; j < inputs; ++j)
        if (isRead[j] && !isBlocked[j])
          pairs.push_back({static_cast<size_t>(store.index), j});
    }
  std::ranges::sort(pairs, {}, [](InPlace pair) { return std::pair(pair.output, pair.input); });
  return pairs;
}

} // namespace recast::fusion
