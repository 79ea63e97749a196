// LLVM's statistics as libMLIR has them, before all else in what uses it (RecastTargets.cmake). The library is built
// with NDEBUG, where a pass's statistics count nothing; without it here, our passes would have members that the
// library's constructor leaves as they were.
#pragma once
#ifdef NDEBUG
#include "llvm/ADT/Statistic.h"
#else
#define NDEBUG
#include "llvm/ADT/Statistic.h"
#undef NDEBUG
#endif
