// The counter-based generator "squares" (Widynski 2020, https://arxiv.org/abs/2004.06278): the number at a counter
// depends on nothing but the key, so that a mask can be drawn again, in any order and on any number of threads.
#pragma once
#include <cmath>
#include <cstdint>

namespace recast::reference {

/// A key of the generator from a user's seed: splitmix64's output function, made odd.
inline uint64_t squaresKey(uint64_t seed) {
  uint64_t z = seed + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z ^ (z >> 31)) | 1;
}

/// 32 random bits: squares32, four rounds.
inline uint32_t squares32(uint64_t counter, uint64_t key) {
  uint64_t x = counter * key, y = x, z = y + key;
  x = x * x + y, x = (x >> 32) | (x << 32);
  x = x * x + z, x = (x >> 32) | (x << 32);
  x = x * x + y, x = (x >> 32) | (x << 32);
  return static_cast<uint32_t>((x * x + z) >> 32);
}

/// The upper bits, as many as f32 has room for: a multiple of 2^-24 in [0, 1).
inline float uniform24(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

/// squares32(...) >= dropThreshold(ratio) exactly where u >= ratio, with u = squares32(...) / 2^32.
inline uint64_t dropThreshold(double ratio) {
  if (!(ratio > 0))
    return 0;
  return ratio >= 1 ? uint64_t(1) << 32 : static_cast<uint64_t>(std::ceil(ratio * 0x1p32));
}

} // namespace recast::reference
