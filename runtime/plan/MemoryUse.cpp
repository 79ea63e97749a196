#include "runtime/plan/MemoryUse.h"
#include <algorithm>
#include <tuple>

namespace recast {

namespace {

bool isPlaced(const Plan &plan, int buffer) {
  if (buffer < 0)
    return false;
  Place place = plan.buffers[static_cast<size_t>(buffer)].place;
  return place == Place::Arena || place == Place::Host;
}

/// Everything that is ever in the arena, values in the order of their buffers, then workspaces.
std::vector<Holder> holdersOf(const Plan &plan) {
  std::vector<Lifetime> lives = lifetimes(plan);
  std::vector<bool> isOutput(plan.buffers.size());
  for (const Output &output : plan.outputs)
    if (output.buffer >= 0)
      isOutput[static_cast<size_t>(plan.rootOf(output.buffer))] = true;
  std::vector<Holder> holders;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer &buffer = plan.buffers[i];
    if (lives[i].first >= 0 && buffer.place == Place::Arena)
      holders.push_back({isOutput[i] ? Holder::Output : Holder::Value, buffer.name, alignedBytes(buffer.type.bytes()),
                         buffer.offset, lives[i]});
  }
  for (size_t i = 0; i < plan.steps.size(); ++i)
    if (const Step &step = plan.steps[i]; step.workspaceBytes)
      holders.push_back({Holder::Workspace,
                         step.spec.name,
                         alignedBytes(step.workspaceBytes),
                         step.workspaceOffset,
                         {static_cast<int>(i), static_cast<int>(i)}});
  return holders;
}

void describeFullest(MemoryUse &use, const std::vector<Holder> &holders) {
  auto most = std::ranges::max_element(use.liveBytes);
  if (most == use.liveBytes.end())
    return;
  use.fullest = static_cast<int>(most - use.liveBytes.begin());
  for (const Holder &holder : holders) {
    if (holder.life.first > use.fullest || holder.life.last < use.fullest)
      continue;
    use.holders.push_back(holder);
    (holder.kind == Holder::Workspace ? use.workspaceBytes
     : holder.kind == Holder::Output  ? use.outputBytes
                                      : use.valueBytes) += holder.bytes;
  }
  std::ranges::sort(use.holders, [](const Holder &a, const Holder &b) {
    return std::tuple(b.bytes, a.life.first, a.kind, a.offset) < std::tuple(a.bytes, b.life.first, b.kind, b.offset);
  });
  use.lostBytes = use.arenaBytes - *most;
}

MemoryUse arenaUse(const Plan &plan) {
  MemoryUse use;
  use.arenaBytes = plan.arenaBytes;
  use.hostBytes = plan.hostBytes;
  std::vector<Holder> holders = holdersOf(plan);
  // Differences from step to step, summed up.
  std::vector<int64_t> change(plan.steps.size() + 1);
  for (const Holder &holder : holders) {
    change[static_cast<size_t>(holder.life.first)] += static_cast<int64_t>(holder.bytes);
    if (auto after = static_cast<size_t>(holder.life.last) + 1; after < change.size())
      change[after] -= static_cast<int64_t>(holder.bytes);
  }
  int64_t live = 0;
  for (size_t i = 0; i < plan.steps.size(); ++i)
    use.liveBytes.push_back(static_cast<size_t>(live += change[i]));
  describeFullest(use, holders);
  for (size_t i = 0; i < plan.steps.size(); ++i)
    for (const Plan &body : plan.steps[i].bodies) {
      use.bodies.push_back(arenaUse(body));
      use.bodies.back().step = static_cast<int>(i);
    }
  return use;
}

/// The steps of one plan that come from one operator.
class OriginGroup {
public:
  OriginGroup(const Plan &plan, const std::vector<int> &steps) : plan(plan), steps(steps) {
    for (int step : steps)
      for (int output : plan.steps[static_cast<size_t>(step)].outputs)
        if (output >= 0)
          made[output] = false;
  }
  /// Declares that something else reads the buffer.
  void markResult(int buffer) {
    if (auto it = made.find(buffer); it != made.end())
      it->second = true;
  }
  void collect(const std::vector<Lifetime> &lives, OriginFacts &facts) const {
    for (int index : steps) {
      const Step &step = plan.steps[static_cast<size_t>(index)];
      size_t bytes = alignedBytes(step.workspaceBytes);
      for (auto [buffer, isResult] : made)
        if (const Lifetime &life = lives[static_cast<size_t>(buffer)];
            !isResult && life.first <= index && index <= life.last)
          bytes += alignedBytes(plan.buffers[static_cast<size_t>(buffer)].type.bytes());
      facts.workspaceBytes = std::max(facts.workspaceBytes, bytes);
      for (InPlace pair : step.inPlace)
        addPair(index, step.outputs[pair.output], step.inputs[pair.input], facts);
    }
  }

private:
  void addPair(int index, int output, int input, OriginFacts &facts) const {
    if (output < 0 || input < 0)
      return;
    int root = plan.rootOf(input);
    const Buffer &to = plan.buffers[static_cast<size_t>(output)], &from = plan.buffers[static_cast<size_t>(root)];
    bool isRead = made.contains(root) || !made.at(output) || to.type.bytes() != from.type.bytes();
    for (int later : steps)
      if (later > index)
        for (int read : plan.steps[static_cast<size_t>(later)].inputs)
          isRead |= read >= 0 && plan.rootOf(read) == root;
    if (!isRead)
      facts.inPlace.emplace_back(to.name, from.name);
  }

  const Plan &plan;
  const std::vector<int> &steps;
  std::map<int, bool> made; ///< Buffers that the steps write; true for results.
};

void collectFacts(const Plan &plan, std::map<std::string, OriginFacts> &facts) {
  std::map<std::string, std::vector<int>> stepsOf;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    stepsOf[plan.steps[i].origin].push_back(static_cast<int>(i));
    for (const std::string &origin : plan.steps[i].moreOrigins)
      stepsOf[origin].push_back(static_cast<int>(i));
  }
  std::map<std::string, OriginGroup> groups;
  std::vector<OriginGroup *> writers(plan.buffers.size());
  for (const auto &[origin, steps] : stepsOf) {
    OriginGroup &group = groups.try_emplace(origin, plan, steps).first->second;
    for (int step : steps)
      for (int output : plan.steps[static_cast<size_t>(step)].outputs)
        if (output >= 0)
          writers[static_cast<size_t>(output)] = &group;
  }
  auto read = [&](int buffer, const OriginGroup *reader) {
    if (buffer < 0)
      return;
    for (int which : {buffer, plan.rootOf(buffer)})
      if (OriginGroup *writer = writers[static_cast<size_t>(which)]; writer && writer != reader)
        writer->markResult(which);
  };
  for (const Step &step : plan.steps)
    for (int input : step.inputs)
      read(input, &groups.at(step.origin));
  for (const Output &output : plan.outputs)
    read(output.buffer, nullptr);
  std::vector<Lifetime> lives = lifetimes(plan);
  for (const auto &[origin, group] : groups)
    group.collect(lives, facts[origin]);
  for (const Step &step : plan.steps)
    for (const Plan &body : step.bodies)
      collectFacts(body, facts);
}

} // namespace

std::vector<Lifetime> lifetimes(const Plan &plan) {
  std::vector<Lifetime> lives(plan.buffers.size());
  int now = 0;
  auto read = [&](int buffer) {
    if (buffer >= 0 && isPlaced(plan, plan.rootOf(buffer)))
      lives[static_cast<size_t>(plan.rootOf(buffer))].last = now;
  };
  for (const Step &step : plan.steps) {
    for (int input : step.inputs)
      read(input);
    for (int output : step.outputs) {
      if (!isPlaced(plan, output))
        continue;
      lives[static_cast<size_t>(output)] = {now, now};
      for (int input : step.inputs)
        if (plan.overlap(output, input))
          lives[static_cast<size_t>(plan.rootOf(input))].last = now - 1;
    }
    ++now;
  }
  for (const Output &output : plan.outputs)
    read(output.buffer);
  return lives;
}

MemoryUse memoryUse(const Plan &plan) {
  MemoryUse use = arenaUse(plan);
  use.stateBytes = plan.bytesAt(Place::State);
  use.inputBytes = plan.bytesAt(Place::Input);
  use.constantBytes = plan.bytesAt(Place::Constant);
  return use;
}

std::map<std::string, OriginFacts> originFacts(const Plan &plan) {
  std::map<std::string, OriginFacts> facts;
  collectFacts(plan, facts);
  return facts;
}

} // namespace recast
