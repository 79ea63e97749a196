// The attributes of one step: ONNX's scalar and list attributes under their ONNX names. Tensors, graphs and types never
// reach the runtime: the compiler turns them into constants and nested plans.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace recast {

class Attributes {
public:
  using Value =
      std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<float>, std::vector<std::string>>;

  void set(std::string name, Value value) { values.insert_or_assign(std::move(name), std::move(value)); }
  bool has(std::string_view name) const { return values.find(name) != values.end(); }

  int64_t getInt(std::string_view name, int64_t fallback) const { return get<int64_t>(name, fallback); }
  /// A double that rounds to the file's float: the number that the float stands for (ir/onnx/IntendedValue.h).
  double getFloat(std::string_view name, double fallback) const { return get<double>(name, fallback); }
  std::string getString(std::string_view name, std::string fallback) const {
    return get<std::string>(name, std::move(fallback));
  }
  /// Empty where absent, unless a fallback is given.
  std::vector<int64_t> getInts(std::string_view name, std::vector<int64_t> fallback = {}) const {
    return get<std::vector<int64_t>>(name, std::move(fallback));
  }
  std::vector<float> getFloats(std::string_view name, std::vector<float> fallback = {}) const {
    return get<std::vector<float>>(name, std::move(fallback));
  }
  std::vector<std::string> getStrings(std::string_view name, std::vector<std::string> fallback = {}) const {
    return get<std::vector<std::string>>(name, std::move(fallback));
  }

  /// Views into the attributes' own storage: no copy. Empty where absent.
  std::span<const int64_t> intsView(std::string_view name) const {
    auto it = values.find(name);
    const auto *list = it == values.end() ? nullptr : std::get_if<std::vector<int64_t>>(&it->second);
    return list ? std::span<const int64_t>(*list) : std::span<const int64_t>();
  }
  std::string_view stringView(std::string_view name, std::string_view fallback) const {
    auto it = values.find(name);
    const auto *text = it == values.end() ? nullptr : std::get_if<std::string>(&it->second);
    return text ? std::string_view(*text) : fallback;
  }

  auto begin() const { return values.begin(); }
  auto end() const { return values.end(); }
  bool operator==(const Attributes &) const = default;

private:
  template <typename T> T get(std::string_view name, T fallback) const {
    auto it = values.find(name);
    if (it == values.end())
      return fallback;
    const T *value = std::get_if<T>(&it->second);
    return value ? *value : fallback;
  }
  std::map<std::string, Value, std::less<>> values;
};

} // namespace recast
