#include "ir/onnx/RotaryTable.h"
#include <cmath>

using namespace llvm;
namespace recast::onnx_ir {

namespace {

// Bases of published models: the original, Llama 3, Qwen 2, and those of long-context variants.
constexpr double kBases[] = {1e4, 5e5, 1e6, 1e5, 5e6, 1e7, 2e4, 4e4, 8e4};

// The frequency of a column: the two halves of a row share them.
double frequency(double base, int64_t column, int64_t columns) {
  float exponent = static_cast<float>(2 * (column % (columns / 2))) / static_cast<float>(columns);
  return 1.0f / std::pow(static_cast<float>(base), exponent);
}

} // namespace

std::optional<SmallVector<double>> widenRotaryTable(ArrayRef<double> table, int64_t rows, int64_t columns) {
  if (rows < 2 || columns < 2 || columns % 2 != 0)
    return std::nullopt;
  for (double base : kBases)
    for (bool isCosine : {true, false}) {
      auto value = [&](double angle) { return isCosine ? std::cos(angle) : std::sin(angle); };
      SmallVector<double> wide;
      wide.reserve(table.size());
      for (size_t i = 0; i < table.size(); ++i) {
        double position = static_cast<double>(static_cast<int64_t>(i) / columns);
        double angle = position * frequency(base, static_cast<int64_t>(i) % columns, columns);
        // The framework's float cosine may be one unit in the last place off the correctly rounded one.
        float nearest = static_cast<float>(value(static_cast<float>(angle))), given = static_cast<float>(table[i]);
        if (given != nearest && given != std::nextafter(nearest, -2.0f) && given != std::nextafter(nearest, 2.0f))
          break;
        wide.push_back(value(angle));
      }
      if (wide.size() == table.size())
        return wide;
    }
  return std::nullopt;
}

} // namespace recast::onnx_ir
