#include "runtime/fusion/Map.h"
#include <algorithm>

namespace recast::fusion {

Map canonical(Map map) {
  std::erase_if(map, [](const Digit &digit) { return digit.size == 1; });
  std::ranges::sort(map, {}, &Digit::div);
  Map joined;
  for (const Digit &digit : map)
    if (!joined.empty() && joined.back().div * joined.back().size == digit.div &&
        joined.back().stride * joined.back().size == digit.stride)
      joined.back().size *= digit.size;
    else
      joined.push_back(digit);
  return joined;
}

Map identity(int64_t count) { return canonical({{1, count, 1}}); }

Map broadcast(std::span<const int64_t> from, std::span<const int64_t> to) {
  Map map;
  int64_t div = 1, stride = 1;
  for (size_t k = 0; k < to.size(); ++k) {
    int64_t size = to[to.size() - 1 - k], own = k < from.size() ? from[from.size() - 1 - k] : 1;
    if (own != 1)
      map.push_back({div, own, stride});
    div *= size;
    stride *= own;
  }
  return canonical(std::move(map));
}

namespace {

/// Cuts the digits of `map` where its values pass `at`; false where `at` lies inside a step of one.
bool cutAt(Map &map, int64_t at) {
  for (size_t k = 0; k < map.size(); ++k) {
    Digit digit = map[k];
    if (digit.stride >= at || digit.stride * digit.size <= at)
      continue;
    int64_t low = at / digit.stride;
    if (at % digit.stride || digit.size % low)
      return false;
    map[k].size = low;
    map.push_back({digit.div * low, digit.size / low, at});
  }
  return true;
}

} // namespace

std::optional<Map> compose(const Map &outer, const Map &inner) {
  Map digits = outer, result;
  for (const Digit &term : inner)
    if (!cutAt(digits, term.div) || !cutAt(digits, term.div * term.size))
      return std::nullopt;
  for (const Digit &term : inner)
    for (const Digit &digit : digits)
      if (digit.stride >= term.div && digit.stride < term.div * term.size) {
        if (digit.stride % term.div)
          return std::nullopt;
        result.push_back({digit.div, digit.size, digit.stride / term.div * term.stride});
      }
  return canonical(std::move(result));
}

Map keptMap(std::span<const int64_t> dims, std::span<const int64_t> axes) {
  Map map;
  int64_t div = 1, stride = 1;
  for (size_t d = dims.size(); d-- > 0; div *= dims[d])
    if (std::ranges::find(axes, static_cast<int64_t>(d)) == axes.end()) {
      map.push_back({div, dims[d], stride});
      stride *= dims[d];
    }
  return canonical(std::move(map));
}

} // namespace recast::fusion
