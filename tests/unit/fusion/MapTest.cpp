#include "runtime/fusion/Map.h"
#include <gtest/gtest.h>
#include <random>

namespace recast::fusion {
namespace {

int64_t at(const Map &map, int64_t i) {
  int64_t element = 0;
  for (const Digit &digit : map)
    element += i / digit.div % digit.size * digit.stride;
  return element;
}

TEST(MapTest, BroadcastsLikeNumPy) {
  std::vector<int64_t> to = {2, 3, 4}, from = {3, 1};
  Map map = broadcast(from, to);
  for (int64_t i = 0; i < 24; ++i)
    EXPECT_EQ(at(map, i), i / 4 % 3);
  EXPECT_TRUE(broadcast(std::vector<int64_t>{1}, to).empty());
  EXPECT_EQ(broadcast(to, to), identity(24));
}

TEST(MapTest, KeptNumbersResults) {
  std::vector<int64_t> dims = {2, 3, 4}, axes = {0, 2};
  Map map = keptMap(dims, axes);
  for (int64_t i = 0; i < 24; ++i)
    EXPECT_EQ(at(map, i), i / 4 % 3);
}

/// Broadcasts in a row, and views between: the composition is what both give one after another.
TEST(MapTest, ComposesAsFunctionsDo) {
  std::mt19937_64 random(1);
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  int composed = 0;
  for (int turn = 0; turn < 2000; ++turn) {
    auto sizes = [&](size_t rank) {
      std::vector<int64_t> dims(rank);
      for (int64_t &size : dims)
        size = std::array<int64_t, 5>{1, 2, 3, 4, 6}[static_cast<size_t>(below(5))];
      return dims;
    };
    auto shrunk = [&](std::vector<int64_t> dims) {
      dims.erase(dims.begin(), dims.begin() + below(static_cast<int64_t>(dims.size())));
      for (int64_t &size : dims)
        size = below(2) ? size : 1;
      return dims;
    };
    std::vector<int64_t> big = sizes(4), middle = shrunk(big);
    int64_t count = 1, elems = 1;
    for (int64_t size : big)
      count *= size;
    for (int64_t size : middle)
      elems *= size;
    // The middle tensor under other dims.
    std::vector<int64_t> view = {elems};
    if (elems % 6 == 0)
      view = {elems / 6, 6};
    std::vector<int64_t> small = shrunk(view);
    Map outer = broadcast(middle, big), inner = broadcast(small, view);
    std::optional<Map> both = compose(outer, inner);
    if (!both)
      continue;
    ++composed;
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(at(*both, i), at(inner, at(outer, i)));
    EXPECT_EQ(canonical(*both), *both);
  }
  EXPECT_GT(composed, 1000);
}

} // namespace
} // namespace recast::fusion
