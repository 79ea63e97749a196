// The plain evaluator: the last entry of every kernel list, and the oracle of the tests. One table row an operator and
// version range; one file of kernels a family.
#pragma once
#include "runtime/kernels/Kernel.h"
#include <initializer_list>
#include <span>

namespace recast::reference {

inline constexpr int64_t kNewest = INT64_MAX;

/// One operator in one range of versions.
struct Entry {
  std::string_view domain, op;
  int64_t sinceFirst, sinceLast; ///< Inclusive range of since_version.
  Status (*run)(const StepSpec &spec, const KernelArgs &args);
  /// Null: the kernel needs no workspace.
  size_t (*workspaceBytes)(const StepSpec &spec) = nullptr;
  /// Null: every combination of types is taken. Else a reason to refuse, "" to accept.
  std::string (*refuses)(const StepSpec &spec) = nullptr;
  /// Kernel::inPlace. Null: none.
  std::vector<InPlace> (*inPlace)(const StepSpec &spec) = nullptr;
  /// Whether the values of inputs can make a run fail, as an index outside of its axis does. Null: they cannot. What
  /// types and shapes alone decide does not count: it fails at the first run or never.
  bool (*mayFail)(const StepSpec &spec) = nullptr;
};

// For Entry::inPlace. The kernel reads an element, a row or a channel before it writes its place.
/// Output 0 and every input with its shape and element size.
std::vector<InPlace> elementwise(const StepSpec &spec);
/// Every output and the input of the same number.
std::vector<InPlace> sameNumber(const StepSpec &spec);
/// Those of `candidates` that are there, with equal shapes and element sizes.
std::vector<InPlace> fittingPairs(const StepSpec &spec, std::initializer_list<InPlace> candidates);
template <InPlace... candidates> std::vector<InPlace> pairs(const StepSpec &spec) {
  return fittingPairs(spec, {candidates...});
}

// For Entry::mayFail.
inline bool always(const StepSpec &) { return true; }
/// Where an input after the first is no constant: axes, indices, limits.
bool unlessConstant(const StepSpec &spec);

// One table a family; each is defined in the file of that name (Elementwise.cpp, ...).
std::span<const Entry> elementwiseEntries();
std::span<const Entry> reductionEntries();
std::span<const Entry> shapeEntries();
std::span<const Entry> indexingEntries();
std::span<const Entry> productEntries();
std::span<const Entry> convolutionEntries();
std::span<const Entry> normalizationEntries();
std::span<const Entry> lossEntries();
std::span<const Entry> attentionEntries();
std::span<const Entry> quantizationEntries();
std::span<const Entry> trainEntries();

/// The entry for the spec, or null.
const Entry *find(const StepSpec &spec);

/// For KernelEntry: wraps the entry's function.
std::unique_ptr<Kernel> create(const StepSpec &spec, std::string &refusal);

} // namespace recast::reference
