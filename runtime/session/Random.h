// Random numbers that are the same on every platform: the standard library's distributions are not.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace recast {

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
class SplitMix64 {
public:
  explicit SplitMix64(uint64_t seed) : state(seed) {}
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, bound); values beyond the last full multiple of `bound` are drawn again. Precondition: bound > 0.
  uint64_t below(uint64_t bound) {
    uint64_t excess = (UINT64_MAX % bound + 1) % bound, value = next();
    while (value > UINT64_MAX - excess)
      value = next();
    return value % bound;
  }

private:
  uint64_t state;
};

/// The order of `count` samples in one epoch: a Fisher-Yates shuffle that depends on seed and epoch only.
inline std::vector<int64_t> shuffledOrder(int64_t count, uint64_t seed, int64_t epoch) {
  SplitMix64 epochSeeds(SplitMix64(seed).next() ^ static_cast<uint64_t>(epoch));
  SplitMix64 random(epochSeeds.next());
  std::vector<int64_t> order(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    order[i] = i;
  for (int64_t i = count - 1; i > 0; --i)
    std::swap(order[i], order[random.below(static_cast<uint64_t>(i) + 1)]);
  return order;
}

} // namespace recast
