// SPDX-License-Identifier: Apache-2.0
// A torch::nn model that learns on several ranks: dt run -n 4 libtorch_ddp
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/torch.h>

#include <cstdio>
#include <dt/dt.hpp>

/// What libtorch lacks: the gradients of a module are averaged over the ranks of a communicator,
/// each bucket as soon as it is full, while the backward pass goes on. Parameters and buffers begin
/// as rank 0 has them. Every parameter must take part in every backward pass.
class DistributedDataParallel {
 public:
  DistributedDataParallel(const torch::nn::Module& module, dt::Comm* comm)
      : parameters_(module.parameters()), reducer_(start(module, comm)) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      // The hook of the node that adds up a gradient runs when that gradient is complete.
      const auto index = static_cast<int32_t>(i);
      nodes_.push_back(torch::autograd::impl::grad_accumulator(parameters_[i]));
      nodes_.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, index](const torch::autograd::variable_list& outputs,
                        const torch::autograd::variable_list&) {
            const torch::Tensor gradient = parameters_[static_cast<std::size_t>(index)].grad();
            TORCH_CHECK(gradient.is_contiguous() && gradient.device().is_cpu(),
                        "gradients must be contiguous, in host memory");
            reducer_.ready(index, gradient.data_ptr());
            return outputs;
          }));
    }
  }
  DistributedDataParallel(DistributedDataParallel&&) = delete;  // the hooks know where this is
  /// After loss.backward(): returns when param.grad() holds the averages.
  void finish() { reducer_.finish(); }

 private:
  static dt_dtype dtype_of(const torch::Tensor& tensor) {
    switch (tensor.scalar_type()) {
      case torch::kFloat32: return DT_F32;
      case torch::kFloat64: return DT_F64;
      case torch::kFloat16: return DT_F16;
      case torch::kBFloat16: return DT_BF16;
      case torch::kInt64: return DT_I64;  // BatchNorm counts its batches
      default: TORCH_CHECK(false, "no gradients of type ", tensor.scalar_type());
    }
  }
  static dt::Reducer start(const torch::nn::Module& module, dt::Comm* comm) {
    std::vector<dt::Param> params;
    for (const auto& item : module.named_parameters()) {
      params.push_back({item.value().numel(), dtype_of(item.value()), item.key()});
    }
    dt::Reducer reducer(*comm, params);  // also checks that all ranks have the same model
    std::vector<torch::Tensor> state = module.parameters();
    for (const torch::Tensor& buffer : module.buffers()) state.push_back(buffer);
    for (const torch::Tensor& tensor : state) {
      TORCH_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(), "not plain host memory");
      comm->broadcast({tensor.data_ptr(), tensor.numel(), dtype_of(tensor)}, 0);
    }
    return reducer;
  }

  std::vector<torch::Tensor> parameters_;
  // A std::shared_ptr, and from libtorch 2.15 on an intrusive one.
  using Node = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));
  std::vector<Node> nodes_;  // without them the hooks are gone, too
  dt::Reducer reducer_;
};

// Three arms of a spiral: which arm is a point on? The batch is that of all ranks.
constexpr int64_t kPoints = 3000, kBatch = 120, kEpochs = 20;

int main() try {
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
  DistributedDataParallel ddp(*model, &comm);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));

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
      optimizer.zero_grad();
      const torch::Tensor logits = model->forward(points.index_select(0, batch));
      const torch::Tensor truth = labels.index_select(0, batch);
      const torch::Tensor loss = torch::nn::functional::cross_entropy(logits, truth);
      loss.backward();
      ddp.finish();
      optimizer.step();
      sums[0] += loss.item<double>() * static_cast<double>(batch.numel());
      sums[1] += static_cast<double>((logits.argmax(1) == truth).sum().item<int64_t>());
    }
    comm.allreduce(sums);
    if (place.rank == 0) {
      std::printf("epoch %2d  loss %.5f  right %.1f %%\n", static_cast<int>(epoch) + 1,
                  sums[0] / kPoints, 100 * sums[1] / kPoints);
    }
  }
  job.finalize();
} catch (const std::exception& error) {
  std::fprintf(stderr, "libtorch_ddp: %s\n", error.what());
  return 1;
}
