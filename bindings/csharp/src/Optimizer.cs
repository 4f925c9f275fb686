// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>How AdamW updates.</summary>
    public sealed class AdamWOptions
    {
        /// <summary>Decay rate of the gradients' running mean, in [0, 1).</summary>
        public double Beta1 { get; set; } = 0.9;
        /// <summary>Decay rate of the running mean of their squares, in [0, 1).</summary>
        public double Beta2 { get; set; } = 0.999;
        /// <summary>At least 0, added to the denominator.</summary>
        public double Epsilon { get; set; } = 1e-8;
        /// <summary>Of all parameters, at least 0; a step multiplies them by
        /// 1 - rate * WeightDecay.</summary>
        public double WeightDecay { get; set; } = 0.01;
        /// <summary>One for each parameter; null: WeightDecay for all.</summary>
        public double[] WeightDecays { get; set; }
        /// <summary>A step whose gradients are not all finite changes nothing, see
        /// <see cref="Optimizer.Skipped"/>.</summary>
        public bool SkipNonFinite { get; set; }
    }

    /// <summary>How SGD updates. Zero and false are the defaults.</summary>
    public sealed class SgdOptions
    {
        /// <summary>At least 0: factor of the last step's momentum.</summary>
        public double Momentum { get; set; }
        /// <summary>From the second step on, the momentum gets 1 - Dampening of the
        /// gradient.</summary>
        public double Dampening { get; set; }
        /// <summary>Nesterov's momentum, which needs a momentum and no dampening.</summary>
        public bool Nesterov { get; set; }
        /// <summary>Of all parameters, at least 0; a step adds WeightDecay * parameter to the
        /// gradient.</summary>
        public double WeightDecay { get; set; }
        /// <summary>One for each parameter; null: WeightDecay for all.</summary>
        public double[] WeightDecays { get; set; }
        /// <summary>A step whose gradients are not all finite changes nothing, see
        /// <see cref="Optimizer.Skipped"/>.</summary>
        public bool SkipNonFinite { get; set; }
    }

    /// <summary>Updates this rank's pieces of a <see cref="Shard"/> by AdamW or SGD, which compute
    /// as PyTorch's, and keeps state for these pieces only. For F16 and BF16 parameters the state
    /// has an F32 copy, which is updated and then rounded into the parameter. The shard may be
    /// disposed of before its optimizer. One thread at a time, which is that of the reducer's
    /// Finish.</summary>
    public sealed class Optimizer : DtObject
    {
        Optimizer(long number) : base(new Handle(number, Raw.NativePINVOKE.optimizer_destroy)) { }

        /// <summary>AdamW. Options are the same on all ranks; null: defaults. Parameters that are
        /// not floating-point numbers are a <see cref="DtUnsupportedException"/>.</summary>
        public static Optimizer AdamW(Shard shard, AdamWOptions options = null)
        {
            AdamWOptions chosen = options ?? new AdamWOptions();
            Packer packer = new Packer()
                .AddDoubles(chosen.Beta1, chosen.Beta2, chosen.Epsilon, chosen.WeightDecay)
                .AddNumbers(chosen.SkipNonFinite ? 1 : 0);
            byte[] packed = Packed("AdamW", shard, packer, chosen.WeightDecays);
            return new Optimizer(Raw.Native.optimizer_adamw(shard, packed, packed.Length));
        }

        /// <summary>SGD. Options are the same on all ranks; null: defaults. Parameters that are
        /// not floating-point numbers are a <see cref="DtUnsupportedException"/>.</summary>
        public static Optimizer Sgd(Shard shard, SgdOptions options = null)
        {
            SgdOptions chosen = options ?? new SgdOptions();
            Packer packer = new Packer()
                .AddDoubles(chosen.Momentum, chosen.Dampening, chosen.WeightDecay)
                .AddNumbers(chosen.Nesterov ? 1 : 0, chosen.SkipNonFinite ? 1 : 0);
            byte[] packed = Packed("Sgd", shard, packer, chosen.WeightDecays);
            return new Optimizer(Raw.Native.optimizer_sgd(shard, packed, packed.Length));
        }

        static byte[] Packed(string operation, Shard shard, Packer packer, double[] decays)
        {
            if (shard == null)
            {
                throw DtException.InvalidArgument(operation + ": shard is null; give one");
            }
            Shard.CheckOneEach(operation, "WeightDecays", decays, shard.parameters);
            return packer.AddDoubles(decays ?? new double[0]).Take();
        }

        /// <summary>Updates the pieces by their gradients, then does what
        /// <see cref="Shard.Updated"/> does; to be called after Finish of the shard's reducer,
        /// otherwise a <see cref="DtInvalidStateException"/>. A parameter that no rank had a
        /// gradient for stays as it is. The rate is finite and the same on all ranks.
        /// Collective.</summary>
        public void Step(double rate, IntPtr stream = default(IntPtr)) =>
            Raw.Native.optimizer_step(this, rate, stream.ToInt64());

        /// <summary>How many steps SkipNonFinite has skipped, but for the last
        /// <paramref name="behind"/>, 0 to 7: the same number on all ranks. On GPUs it waits until
        /// the counted steps are over.</summary>
        public long Skipped(int behind = 0) => Raw.Native.optimizer_skipped(this, behind);
    }
}
