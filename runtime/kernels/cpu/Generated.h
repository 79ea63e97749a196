// Steps whose code was generated from the graph (runtime/fusion). Links no compiler: the plan carries the code.
#pragma once
#include "runtime/plan/Plan.h"
#include "runtime/plan/SharedObject.h"

namespace recast {

/// Step::library of generated steps.
inline constexpr std::string_view kGeneratedLibrary = "generated";

/// The shared objects of a plan, opened from memory. Their functions are gone with it.
class GeneratedCode {
public:
  using Entry = void (*)(void *const *buffers, void *workspace, int64_t begin, int64_t end);

  /// An error where code is for another processor, or damaged.
  Status load(std::span<const CodeObject> objects);
  /// Null where no object has it.
  Entry find(const std::string &name) const;

private:
  std::vector<SharedObject> loaded;
};

/// A step of the library "generated". Its attributes:
///   entries    names of functions `void(void *const *buffers, void *workspace, int64_t begin, int64_t end)` that run
///              one after another; `buffers` are the step's inputs, then its outputs
///   ranges     for each, the number of ranges: begin and end count in them, and they are independent of each other
///   grains     for each, the least number of ranges that is worth a thread
///   in_place   pairs: an output, and an input that it may lie in
///   workspace  bytes
///   checks     four numbers a check of an input: its number, a count of classes, whether there is a number to ignore,
///              and which; integers that are neither a class nor ignored are an error
///   checked    for each check, the node that asks for it
///   operators  what the step does, for people
Result<std::unique_ptr<Kernel>> createGenerated(const StepSpec &spec, const GeneratedCode &code);

} // namespace recast
