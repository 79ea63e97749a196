// The models that PyTorch exported, for tests that run over all of them. RECAST_CORPUS is the corpus's folder.
#pragma once
#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <vector>

namespace recast::test {

namespace fs = std::filesystem;
inline const fs::path kTorch = fs::path(RECAST_CORPUS) / "torch";

/// Those whose gradient can be built.
inline std::vector<std::string> modelNames() {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto &entry : fs::directory_iterator(kTorch, code)) {
    std::string name = entry.path().filename().string();
    bool isRefused = std::ranges::any_of(std::array{"gru_", "lstm_", "rnn_", "ctrl_"},
                                         [&](const char *start) { return name.starts_with(start); });
    if (fs::exists(entry.path() / "model.onnx") && !isRefused)
      names.push_back(name);
  }
  std::ranges::sort(names);
  if (names.empty())
    names.push_back("the_corpus_is_missing");
  return names;
}

} // namespace recast::test
