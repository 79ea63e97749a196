// Own generator (xorshift64*, Vigna 2016): the same numbers on every machine.
#pragma once
#include <cstdint>

namespace recast::remat {

class Random {
public:
  explicit Random(uint64_t seed) : State(seed * 2 + 0x9E3779B97F4A7C15ull) {}
  uint64_t next() {
    State ^= State >> 12;
    State ^= State << 25;
    State ^= State >> 27;
    return State * 0x2545F4914F6CDD1Dull;
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  int below(int bound) { return static_cast<int>(next() % static_cast<uint64_t>(bound)); }

private:
  uint64_t State;
};

} // namespace recast::remat
