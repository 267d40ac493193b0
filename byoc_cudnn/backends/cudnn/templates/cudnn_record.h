// ---- the tuning record --------------------------------------------------------------------------------
//
// One line per problem: key, tab, choice, tab, milliseconds.  The file belongs to the user alone; one
// that others could have written, and any line that is not understood, is left aside with a warning.

namespace {

class Record {
 public:
  // The file's folder: $RELAY_WGRAD_CACHE, else relay-wgrad in the user's cache folder; none without
  // a home.
  Record() {
    const char* own = std::getenv("RELAY_WGRAD_CACHE");
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    if (own != nullptr && own[0] != 0) {
      folder_ = own;
    } else if (cache != nullptr && cache[0] == '/') {
      folder_ = std::string(cache) + "/relay-wgrad";
    } else if (home != nullptr && home[0] == '/') {
      folder_ = std::string(home) + "/.cache/relay-wgrad";
    }
    if (!folder_.empty()) read(&known_);
  }

  bool find(const std::string& key, Choice* choice, double* ms) const {
    auto it = known_.find(key);
    if (it == known_.end()) return false;
    *choice = it->second.first;
    *ms = it->second.second;
    return true;
  }

  // Adds a line to what the file holds by now; a failure costs the next process some time, no more.
  void add(const std::string& key, const Choice& choice, double ms) {
    known_[key] = {choice, ms};
    if (folder_.empty()) return;
    make_folders();
    const int lock = open((folder_ + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0 || flock(lock, LOCK_EX) != 0) {
      warn("cannot be locked: its timings are not kept");
      if (lock >= 0) close(lock);
      return;
    }
    Lines lines;
    read(&lines);
    lines[key] = {choice, ms};
    const std::string path = file(), made = path + "." + std::to_string(getpid());
    const int out = open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool good = out >= 0;
    if (good) {
      std::string text = std::string(kHeader) + "\n";
      for (const auto& line : lines) {
        char number[32];
        std::snprintf(number, sizeof(number), "%.6f", line.second.second);
        text += line.first + "\t" + line.second.first.text() + "\t" + number + "\n";
      }
      size_t done = 0;
      while (good && done < text.size()) {
        const ssize_t n = write(out, text.data() + done, text.size() - done);
        good = n > 0;
        if (good) done += static_cast<size_t>(n);
      }
      close(out);
      good = good && std::rename(made.c_str(), path.c_str()) == 0;
    }
    if (!good) warn("cannot be written: its timings are not kept");
    close(lock);
  }

 private:
  using Lines = std::map<std::string, std::pair<Choice, double>>;
  static constexpr const char* kHeader = "relay-wgrad cudnn plans 1";

  std::string file() const { return folder_ + "/cudnn-plans-1.tsv"; }

  void warn(const std::string& what) const {
    std::fprintf(stderr, "relay-wgrad: tuning record %s %s\n", file().c_str(), what.c_str());
  }

  void make_folders() const {
    for (size_t at = folder_.find('/', 1); at != std::string::npos; at = folder_.find('/', at + 1)) {
      mkdir(folder_.substr(0, at).c_str(), 0700);
    }
    mkdir(folder_.c_str(), 0700);
  }

  void read(Lines* lines) const {
    const int in = open(file().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (in < 0) return;
    struct stat info;
    if (fstat(in, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & (S_IWGRP | S_IWOTH)) != 0 || info.st_size > (64 << 20)) {
      warn("is not a file that this user alone may write, or too large: not used");
      close(in);
      return;
    }
    std::string text(static_cast<size_t>(info.st_size), '\0');
    size_t done = 0;
    for (ssize_t n = 1; n > 0 && done < text.size(); done += static_cast<size_t>(n > 0 ? n : 0)) {
      n = ::read(in, &text[done], text.size() - done);
    }
    close(in);
    text.resize(done);
    std::istringstream stream(text);
    std::string line;
    if (!std::getline(stream, line) || line != kHeader) {
      warn("is not a record of this version: not used");
      return;
    }
    int64_t odd = 0;
    while (std::getline(stream, line)) {
      const size_t first = line.find('\t'), second = line.find('\t', first + 1);
      Choice choice;
      char* end = nullptr;
      if (first == std::string::npos || second == std::string::npos || first == 0 ||
          !Choice::parse(line.substr(first + 1, second - first - 1), &choice)) {
        ++odd;
        continue;
      }
      const double ms = std::strtod(line.c_str() + second + 1, &end);
      if (end == line.c_str() + second + 1 || *end != 0 || !(ms >= 0)) {
        ++odd;
        continue;
      }
      (*lines)[line.substr(0, first)] = {choice, ms};
    }
    if (odd > 0) warn("has " + std::to_string(odd) + " damaged lines: not used");
  }

  std::string folder_;
  Lines known_;
};

}  // namespace
