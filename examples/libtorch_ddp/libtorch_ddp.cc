// SPDX-License-Identifier: Apache-2.0
// A torch::nn model that learns on several ranks: dt run -n 4 libtorch_ddp [--zero 0|1|2|3]
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/torch.h>

#include <cstdio>
#include <dt/dt.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

dt_dtype dtype_of(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat32: return DT_F32;
    case torch::kFloat64: return DT_F64;
    case torch::kFloat16: return DT_F16;
    case torch::kBFloat16: return DT_BF16;
    case torch::kInt64: return DT_I64;  // BatchNorm counts its batches
    default: TORCH_CHECK(false, "no gradients of type ", tensor.scalar_type());
  }
}

/// As dt wants them, for a reducer or a shard.
std::vector<dt::Param> params_of(const torch::nn::Module& module) {
  std::vector<dt::Param> params;
  for (const auto& item : module.named_parameters()) {
    params.push_back({item.value().numel(), dtype_of(item.value()), item.key()});
  }
  return params;
}

/// Parameters and buffers of all ranks become those of rank 0.
void broadcast(const torch::nn::Module& module, dt::Comm* comm) {
  std::vector<torch::Tensor> state = module.parameters();
  for (const torch::Tensor& buffer : module.buffers()) state.push_back(buffer);
  for (const torch::Tensor& tensor : state) {
    TORCH_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(), "not plain host memory");
    comm->broadcast({tensor.data_ptr(), tensor.numel(), dtype_of(tensor)}, 0);
  }
}

// A std::shared_ptr, and from libtorch 2.15 on an intrusive one.
using Node = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));

/// complete(index, gradient) is called in each backward pass when parameter `index` has its whole
/// gradient; nothing in the pass uses the parameter after that. Without the nodes the hooks are
/// gone, too.
std::vector<Node> hook_gradients(
    const std::vector<torch::Tensor>& parameters,
    const std::function<void(int32_t index, torch::Tensor& gradient)>& complete) {
  using torch::autograd::variable_list;
  std::vector<Node> nodes;
  for (const torch::Tensor& parameter : parameters) {
    // The hook of the node that adds up a gradient runs when that gradient is complete.
    const auto index = static_cast<int32_t>(nodes.size());
    nodes.push_back(torch::autograd::impl::grad_accumulator(parameter));
    nodes.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [parameter, index, complete](const variable_list& outputs, const variable_list&) {
          torch::Tensor& gradient = parameter.mutable_grad();
          TORCH_CHECK(gradient.is_contiguous() && gradient.device().is_cpu(),
                      "gradients must be contiguous, in host memory");
          complete(index, gradient);
          return outputs;
        }));
  }
  return nodes;
}

/// What libtorch lacks: the gradients of a module are averaged over the ranks of a communicator,
/// each bucket as soon as it is full, while the backward pass goes on. Parameters and buffers begin
/// as rank 0 has them. Every parameter must take part in every backward pass.
///
/// Gradients lie in the buckets as long as this exists: no copy is made where they are set to zero
/// between steps, and one where zero_grad() leaves them undefined, as it does from libtorch 2 on.
class DistributedDataParallel {
 public:
  DistributedDataParallel(const torch::nn::Module& module, dt::Comm* comm)
      : reducer_(*comm, params_of(module)),  // also checks that all ranks have the same model
        parameters_(module.parameters()) {
    broadcast(module, comm);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      void* const place = reducer_.grad(static_cast<int32_t>(i));
      views_.push_back(torch::from_blob(place, parameters_[i].sizes(), parameters_[i].options()));
      parameters_[i].mutable_grad() = views_[i].zero_();
    }
    nodes_ = hook_gradients(parameters_, [this](int32_t index, torch::Tensor& gradient) {
      const torch::Tensor& view = views_[static_cast<size_t>(index)];
      if (gradient.data_ptr() != view.data_ptr()) gradient = view.copy_(gradient);
      reducer_.ready(index);
    });
  }
  ~DistributedDataParallel() {
    for (torch::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }
  DistributedDataParallel(DistributedDataParallel&&) = delete;  // the hooks know where this is
  /// After loss.backward(): returns when param.grad() holds the averages.
  void finish() { reducer_.finish(); }

 private:
  dt::Reducer reducer_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> views_;  // of the gradients in the buckets, by parameter
  std::vector<Node> nodes_;
};

/// The same for a torch::nn::Sequential of which each rank updates its own pieces, by dt's AdamW.
/// `stage` is that of ZeRO: 1 shards the optimizer's state, 2 the gradients as well, 3 the
/// parameters as well, 0 nothing. Parameters lie in dt's memory, and the module has them only while
/// their layer is in use. So the model runs through forward(), which all ranks call alike, and
/// parameter.grad() stays undefined.
class ShardedDataParallel {
 public:
  ShardedDataParallel(const torch::nn::Sequential& model, dt::Comm* comm, int32_t stage)
      : model_(model), parameters_(model->parameters()) {
    dt::ShardOptions options;
    options.stage = stage;
    for (const torch::nn::AnyModule& layer : *model) {
      const std::size_t begin = options.units.size();
      const std::size_t end = begin + layer.ptr()->parameters().size();
      options.units.resize(end, static_cast<int32_t>(units_.size()));
      units_.push_back({static_cast<int32_t>(begin), static_cast<int32_t>(end), 0});
    }
    shard_ = dt::Shard(*comm, params_of(*model), options);
    optimizer_ = dt::Optimizer::adamw(shard_);  // its defaults are those of torch::optim::AdamW
    broadcast(*model, comm);
    for (int32_t index = 0; index < static_cast<int32_t>(parameters_.size()); ++index) {
      const torch::Storage& storage = parameters_[index].storage();
      TORCH_CHECK(storage.use_count() == 1 && storage.data() != nullptr,
                  "each parameter must belong to one layer, and have memory of its own");
      shard_.set(index, parameters_[index].data_ptr());
      place(index, nullptr);
    }
    nodes_ = hook_gradients(
        parameters_, [this, unit_of = options.units](int32_t index, torch::Tensor& gradient) {
          shard_.reducer().ready(index, gradient.data_ptr());
          gradient.reset();  // its bucket has it
          Unit& unit = units_[unit_of[index]];
          if (++unit.complete == unit.end - unit.begin) leave(unit_of[index]);
        });
  }
  ShardedDataParallel(ShardedDataParallel&&) = delete;

  torch::Tensor forward(torch::Tensor x) {
    int32_t unit = 0;
    for (torch::nn::AnyModule& layer : *model_) {
      enter(unit);
      x = layer.forward(x);
      // Runs before the layer's part of the backward pass, which begins with this gradient.
      if (x.requires_grad()) x.register_hook([this, unit](const torch::Tensor&) { enter(unit); });
      leave(unit++);
    }
    return x;
  }
  /// After loss.backward().
  void step(double rate) {
    shard_.reducer().finish();
    // shard_.reducer().clip_norm(1) would go here.
    optimizer_.step(rate);
  }

 private:
  struct Unit {
    int32_t begin, end;  // its parameters
    int32_t complete;    // of them, in this backward pass
  };
  void enter(int32_t number) {
    Unit& unit = units_[number];
    if (unit.begin == unit.end) return;
    shard_.gather(number);
    unit.complete = 0;
    for (int32_t index = unit.begin; index < unit.end; ++index) place(index, shard_.param(index));
  }
  void leave(int32_t number) {
    const Unit& unit = units_[number];
    if (unit.begin == unit.end) return;
    for (int32_t index = unit.begin; index < unit.end; ++index) place(index, nullptr);
    shard_.release(number);
  }
  /// What autograd keeps of a parameter shares its storage, so that it finds the new memory, too.
  void place(int32_t index, void* memory) {
    parameters_[index].storage().set_data_ptr_noswap(at::DataPtr(memory, torch::kCPU));
  }

  torch::nn::Sequential model_;
  std::vector<torch::Tensor> parameters_;
  std::vector<Unit> units_;  // the layers
  dt::Shard shard_{nullptr};
  dt::Optimizer optimizer_{nullptr};
  std::vector<Node> nodes_;
};

// Three arms of a spiral: which arm is a point on? The batch is that of all ranks.
constexpr int64_t kPoints = 3000, kBatch = 120, kEpochs = 20;
constexpr double kRate = 1e-2;

int main(int argc, char** argv) try {
  const std::string stage = argc == 3 && std::string(argv[1]) == "--zero" ? argv[2] : "";
  if (argc != 1 && (stage.size() != 1 || stage < "0" || stage > "3")) {
    std::fprintf(stderr, "usage: libtorch_ddp [--zero 0|1|2|3]\n");
    return 2;
  }
  dt::Job job;
  dt::Comm comm = job.world();
  const dt::Place place = job.place();
  TORCH_CHECK(kBatch % place.world_size == 0, "a batch of ", kBatch, " for these ranks?");
  torch::set_num_threads(1);

  torch::manual_seed(7);  // the same points on every rank
  const torch::Tensor labels = torch::arange(kPoints) % 3;
  const torch::Tensor radius = torch::rand({kPoints});
  const torch::Tensor angle = radius * 6 + labels * 2.0943951 + torch::randn({kPoints}) * 0.1;
  const torch::Tensor points = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);

  torch::manual_seed(static_cast<uint64_t>(place.rank));  // other weights; those of rank 0 count
  torch::nn::Sequential model(torch::nn::Linear(2, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 3));
  std::optional<ShardedDataParallel> sharded;
  std::optional<DistributedDataParallel> ddp;
  std::optional<torch::optim::AdamW> optimizer;
  if (!stage.empty()) {
    sharded.emplace(model, &comm, std::stoi(stage));
  } else {
    ddp.emplace(*model, &comm);
    optimizer.emplace(model->parameters(), torch::optim::AdamWOptions(kRate));
  }

  dt::SamplerOptions deal;
  deal.world_size = place.world_size;
  deal.rank = place.rank;
  deal.size = kPoints;
  dt::Sampler sampler(deal);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    const torch::Tensor mine = torch::tensor(sampler.indices());
    double sums[2] = {0, 0};  // loss, right answers
    for (const torch::Tensor& batch : mine.split(kBatch / place.world_size)) {
      const torch::Tensor inputs = points.index_select(0, batch);
      const torch::Tensor logits = sharded ? sharded->forward(inputs) : model->forward(inputs);
      const torch::Tensor truth = labels.index_select(0, batch);
      const torch::Tensor loss = torch::nn::functional::cross_entropy(logits, truth);
      loss.backward();
      if (sharded) {
        sharded->step(kRate);
      } else {
        ddp->finish();
        optimizer->step();
        optimizer->zero_grad();
      }
      sums[0] += loss.item<double>() * static_cast<double>(batch.numel());
      sums[1] += static_cast<double>((logits.argmax(1) == truth).sum().item<int64_t>());
    }
    comm.allreduce(sums);
    if (place.rank == 0) {
      std::printf("epoch %2d  loss %.7f  right %.1f %%\n", static_cast<int>(epoch) + 1,
                  sums[0] / kPoints, 100 * sums[1] / kPoints);
    }
  }
  job.finalize();
} catch (const std::exception& error) {
  std::fprintf(stderr, "libtorch_ddp: %s\n", error.what());
  return 1;
}
