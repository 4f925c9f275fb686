// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/loop.h"
#include "ps/table.h"

namespace dt::ps {

// What a server keeps in a file, in the layout of safetensors: of each variable "v" the rows of
// this server, one after the other, as "v"; what its optimizer keeps as "optimizer.first.v" and
// "optimizer.second.v"; how often each row was updated as "updates.v", whose highest bit says that
// the row was used (others are zeros in the file); and how it was made as "variable.v". Then which
// workers had come, as "server.workers".

/// A worker's number and its Enter::nonce.
struct Known {
  int64_t worker = 0;
  uint64_t nonce = 0;
};

struct Loaded {
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<Known> workers;
};

/// "DIRECTORY/server-1-of-4.safetensors"
std::string checkpoint_path(const std::string& directory, int32_t server, int32_t servers);

/// What the server's file holds; nothing where the directory has no checkpoint. INVALID_ARGUMENT
/// for a file of another layout, CONFIG where the directory has the files of other servers, but not
/// this one's. Removes what a save that was killed has left.
Result<Loaded> load(const std::string& directory, int32_t server, int32_t servers);

/// Writes tables to a file while they are in use. The owner's loop copies some rows with all that
/// belongs to them, a second loop writes these and then asks for the next ones, so that no request
/// waits for the disk. Each row is as it was at some time of the writing.
///
/// Owner's loop; tables outlive it. `done` runs there once, unless the object goes before.
class Saving : public std::enable_shared_from_this<Saving> {
 public:
  /// @param files writes; outlives this
  static std::shared_ptr<Saving> begin(net::Loop* owner, net::Loop* files, std::string path,
                                       const std::vector<Table*>& tables,
                                       const std::vector<Known>& workers,
                                       std::function<void(const Status&)> done);
  ~Saving();

 private:
  struct File;
  /// An array of rows, or of bytes.
  struct Column {
    const char* memory = nullptr;
    int64_t row_bytes = 1;
    int64_t at = 0;  ///< in the file
  };
  /// Arrays of as many rows, of which some are copied together.
  struct Part {
    int64_t rows = 0;
    std::vector<Column> columns;
  };
  struct Piece {
    std::string bytes;
    int64_t at = 0;
  };

  Saving(net::Loop* owner, net::Loop* files, std::function<void(const Status&)> done)
      : owner_(owner), files_(files), done_(std::move(done)) {}
  Status plan(std::string path, const std::vector<Table*>& tables,
              const std::vector<Known>& workers);
  /// The next rows; none: all were copied.
  std::vector<Piece> copy();
  void go_on();
  void end(const Status& status);

  net::Loop* const owner_;
  net::Loop* const files_;
  std::function<void(const Status&)> done_;
  std::vector<std::string> made_;  ///< memory of parts
  std::vector<Part> parts_;
  size_t next_ = 0;     ///< of parts_
  int64_t copied_ = 0;  ///< rows of it
  std::shared_ptr<File> file_;
};

}  // namespace dt::ps
