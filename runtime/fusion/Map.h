// How the elements of one dense tensor are numbered by those of another: sums of digits of the row-major number.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace recast::fusion {

/// One term: ((i / div) % size) * stride. All are positive.
struct Digit {
  int64_t div, size, stride;
  bool operator==(const Digit &) const = default;
};

/// element(i) = the sum of the digits. Canonical: by rising div, digits that go on where another ends are one, and
/// those of size 1 are left out. No digit: element 0 for every i.
using Map = std::vector<Digit>;

/// Sorts, joins and drops; the result is canonical.
Map canonical(Map map);
/// element(i) = i over `count` elements.
Map identity(int64_t count);
/// Where a tensor with the dims `from` has what is broadcast to the dims `to`.
Map broadcast(std::span<const int64_t> from, std::span<const int64_t> to);
/// element(i) = inner(outer(i)). Nothing where a digit of one would be cut at no whole number of the other's.
std::optional<Map> compose(const Map &outer, const Map &inner);
/// The number of the element that holds the reduction of element i, where `axes` of `dims` are reduced.
Map keptMap(std::span<const int64_t> dims, std::span<const int64_t> axes);

} // namespace recast::fusion
