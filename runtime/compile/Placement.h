// Where buffers lie in one arena: plain structs, so that a solver is tested without a compiler around it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace recast::placement {

/// A piece of memory that is needed from step `first` to step `last`, both included.
struct Item {
  size_t bytes = 0;
  int first = 0, last = 0;
  /// An item of as many bytes whose last step is this one's first: both may lie at one place, where this one takes over
  /// at that step. Anywhere else they are apart, as all items are. -1: none.
  int takesOver = -1;
};

struct Problem {
  std::vector<Item> items; ///< Each after the one that it takes over.
  size_t alignment = 64;   ///< Bytes, a power of two; of every offset.
};

struct Solution {
  std::vector<size_t> offsets; ///< One an item, in bytes. Items without bytes are at 0.
  size_t bytes = 0;            ///< The high-water mark: the arena's size.
};

/// The most bytes that are needed at one step, each item rounded up to the alignment, where all that can take over do:
/// no solution is smaller.
size_t lowerBound(const Problem &problem);

/// A good solution, the same at every call: the best of some heuristics, and up to kSearchedItems items what a search
/// makes of it. The arena is mostly, and not always, as small as possible. Items take over where they can; if the arena
/// is above the lower bound then, another attempt lets them do so only where the bound asks for it, for short items are
/// easier to place.
Solution solve(const Problem &problem);
inline constexpr size_t kSearchedItems = 2000;
inline constexpr size_t kSearchEffort = 20'000'000; ///< Decisions times items: at most some tenths of a second.

/// The best of some orders of placing; nothing takes over. Time grows with n log n beyond kThoroughItems items, and
/// with n^2 below.
Solution heuristics(const Problem &problem);
inline constexpr size_t kThoroughItems = 6000;

/// "" where the solution is sound; else what is wrong: two live items that overlap, an offset that is not aligned, an
/// item beyond the end. Takes n log n time.
std::string check(const Problem &problem, const Solution &solution);

} // namespace recast::placement
