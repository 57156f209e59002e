/* The table itself: data only. */
/* clang-format off */
#include "app/flags.h"

#define RUN    CMD_BIT(CMD_RUN)
#define BENCH  CMD_BIT(CMD_BENCH)
#define PPL    CMD_BIT(CMD_PERPLEXITY)
#define INSP   CMD_BIT(CMD_INSPECT)
#define TOK    CMD_BIT(CMD_TOKENIZE)
#define LOGITS CMD_BIT(CMD_LOGITS)
#define SIM    CMD_BIT(CMD_SIMULATE)
#define DOCTOR CMD_BIT(CMD_DOCTOR)
#define COMPL  CMD_BIT(CMD_COMPLETION)
#define MAN    CMD_BIT(CMD_MAN)
#define VERS   CMD_BIT(CMD_VERSION)
#define PLAN   CMD_BIT(CMD_PLAN)
#define PROF   CMD_BIT(CMD_PROFILE)
#define ENGINE (RUN | BENCH | PPL | LOGITS | PLAN) /* what computes, or could */
#define REPORT (ENGINE | INSP | TOK | SIM | PROF | DOCTOR)
#define ALL    (REPORT | COMPL | MAN | VERS)

#define THREADS_MAX 512
#define CTX_MAX     16777216
#define BATCH_MAX   65536

const struct command commands[N_COMMANDS] = {
    [CMD_RUN] =
        {
            .name = "run",
            .alias = "chat",
            .positional = "[MODEL]",
            .n_positional = 1,
            .summary = "chat with a model, or print one answer",
            .about = "Without -p, -f or text on standard input: a chat with line editing, history "
                     "and commands (/help lists them); Ctrl-C stops the answer, a second one at "
                     "the empty prompt leaves. With them: one answer on standard output. Text on "
                     "standard input is appended to that of -p.",
            .examples = "atsinfer run -m model.gguf  # chat\n"
                        "atsinfer run -m model.gguf -p \"Why is the sky blue?\"  # one answer\n"
                        "atsinfer run -p \"Summarise:\" < notes.txt  # prompt and a file\n"
                        "atsinfer run --no-template -p \"Once upon a time\" -n 50  # plain "
                        "continuation\n"
                        "atsinfer run -p Hello --temp 0 --json  # greedy, machine-readable",
        },
    [CMD_BENCH] =
        {
            .name = "bench",
            .positional = "[MODEL]",
            .n_positional = 1,
            .summary = "measure prompt and generation speed",
            .about = "Times prompt evaluation (pp), generation (tg) and both in turn (-pg), at "
                     "chosen depths, over several repetitions after a warm-up. The tokens are a "
                     "fixed stream, drawn from a seeded generator or from the text of -f, never "
                     "the model's own choice, so that runs compare. A depth is evaluated once "
                     "and the session cut back to it between repetitions.",
            .examples = "atsinfer bench -m model.gguf  # pp512 and tg128\n"
                        "atsinfer bench -p 128,512 -n 0 -t 1,2,4  # prompt speed by threads\n"
                        "atsinfer bench -p 0 -n 64 -d 0,2048 -o json  # generation by depth\n"
                        "atsinfer bench -pg 512,128 -r 10 -o csv",
        },
    [CMD_PERPLEXITY] =
        {
            .name = "perplexity",
            .positional = "[MODEL]",
            .n_positional = 1,
            .summary = "measure how well a model predicts a text",
            .about = "The text is tokenized once and cut into windows of -c tokens that do not "
                     "overlap. Each is evaluated from an empty cache, its first token replaced by "
                     "BOS if the model uses one; only the second half of a window counts. The "
                     "result is exp of the mean negative log-likelihood, with its standard error.",
            .examples = "atsinfer perplexity -m model.gguf -f text.txt\n"
                        "atsinfer perplexity -m model.gguf -f text.txt -c 2048 --chunks 10 --json",
        },
    [CMD_PLAN] =
        {
            .name = "plan",
            .positional = "[MODEL]",
            .n_positional = 1,
            .summary = "show where a model's weights and caches would go",
            .about = "Reads the header of the file only and prints the home of every layer (or, with "
                     "--tensors, of every tensor) and what each device would hold, against the "
                     "memory it has. The flags are those of run. With --machine: the plan that would "
                     "be made on that machine, predictions, limits, what would change them, and "
                     "with --tensors the times and the reason of each home; the model may be a "
                     "shape.",
            .examples = "atsinfer plan -m model.gguf --device cpu,vulkan  # as much as fits\n"
                        "atsinfer plan -m model.gguf -ngl 12 --tensors\n"
                        "atsinfer plan -m model.gguf --vram 4000 --save-plan plan.json\n"
                        "atsinfer plan shapes/qwen3-14b.json --machine "
                        "machines/laptop-rtx3060-6gb.json --tensors\n"
                        "atsinfer plan shapes/qwen3-14b.json --machine "
                        "machines/laptop-rtx3060-6gb.json --diff layer\n"
                        "atsinfer plan -m model.gguf -ngl all -ot \"ffn_.*_exps=cpu\" --json",
        },
    [CMD_INSPECT] =
        {
            .name = "inspect",
            .positional = "[MODEL]",
            .n_positional = 1,
            .summary = "show what is in a GGUF file",
            .about = "Reads the header only: architecture, sizes, tensor types, tokenizer, "
                     "metadata, chat template.",
            .examples = "atsinfer inspect model.gguf\n"
                        "atsinfer inspect model.gguf --tensors\n"
                        "atsinfer inspect model.gguf --kv general.name\n"
                        "atsinfer inspect model.gguf --template",
        },
    [CMD_TOKENIZE] =
        {
            .name = "tokenize",
            .positional = "[TEXT...]",
            .n_positional = -1,
            .summary = "turn text into token ids and back",
            .about = "The text is taken from the arguments, from -f, or from standard input. On a "
                     "terminal the answer is a table of ids and pieces, else one row of ids; --ids "
                     "and --pieces choose. With --decode the input is ids and the answer text.",
            .examples = "atsinfer tokenize -m model.gguf \"Hello world\"\n"
                        "atsinfer tokenize -m model.gguf --ids -f text.txt > ids.txt\n"
                        "atsinfer tokenize -m model.gguf --decode 1 2 3",
        },
    [CMD_LOGITS] =
        {
            .name = "logits",
            .positional = "[MODEL]",
            .n_positional = 1,
            .summary = "evaluate token ids and store the logits",
            .about = "Reads whitespace-separated token ids and writes a NumPy file: float32, shape "
                     "(n_tokens, n_vocab), row-major. What comparisons between engines use.",
            .examples = "atsinfer logits -m model.gguf --ids ids.txt -o logits.npy\n"
                        "atsinfer logits -m model.gguf --ids ids.txt -o logits.npy --math f32 "
                        "-ctk f32 -ctv f32 -b 7",
        },
    [CMD_SIMULATE] =
        {
            .name = "simulate",
            .positional = "[MODEL]",
            .n_positional = 1,
            .summary = "tell how fast a model would be on a machine",
            .about = "Plans a model for a described machine and runs the plan in virtual time: "
                     "speed, where the time goes, what is copied, and how far from the limits "
                     "that is. The model is a GGUF file, of which only the header is read, or a "
                     "shape (shapes/*.json); machines are in machines/*.json.",
            .examples = "atsinfer simulate shapes/qwen3-14b.json --machine "
                        "machines/laptop-rtx3060-6gb.json\n"
                        "atsinfer simulate model.gguf --machine machines/desktop-rx7600-8gb.json "
                        "--vram 6000 -c 8192 --json\n"
                        "atsinfer simulate model.gguf --machine my.json --granularity layer "
                        "--transfer none  # what others do",
        },
    [CMD_PROFILE] =
        {
            .name = "profile",
            .positional = "[MODEL]",
            .n_positional = 1,
            .summary = "measure this machine for a model",
            .about = "Times the model's operators on the processor and on a GPU, the link between "
                     "them, what a change of device costs and what they lose to each other. Only "
                     "the header of the model is read. The result is kept in the cache directory; "
                     "plan uses it from then on.",
            .examples = "atsinfer profile model.gguf  # on the processor and the best GPU\n"
                        "atsinfer profile model.gguf --device cpu,vulkan0 --quick\n"
                        "atsinfer profile model.gguf --force --json",
        },
    [CMD_DOCTOR] =
        {
            .name = "doctor",
            .summary = "show what this machine offers",
            .about = "Processor features, usable cores, memory, devices, and advice.",
            .examples = "atsinfer doctor\natsinfer doctor --json",
        },
    [CMD_COMPLETION] =
        {
            .name = "completion",
            .positional = "bash|zsh|fish",
            .n_positional = 1,
            .summary = "print a completion script for a shell",
            .about = "The script completes commands, flags, choices and file names.",
            .examples = "atsinfer completion bash > ~/.local/share/bash-completion/completions/"
                        "atsinfer\n"
                        "atsinfer completion fish > ~/.config/fish/completions/atsinfer.fish",
        },
    [CMD_MAN] =
        {
            .name = "man",
            .summary = "print the manual page",
            .about = "In roff, as man reads it.",
            .examples = "atsinfer man | man -l -",
        },
    [CMD_VERSION] =
        {
            .name = "version",
            .summary = "print the version",
            .about = "The program's version, one line.",
            .examples = "atsinfer version",
        },
    [CMD_HELP] =
        {
            .name = "help",
            .positional = "[COMMAND]",
            .n_positional = 1,
            .summary = "explain a command and its flags",
            .about = "The same as COMMAND --help.",
            .examples = "atsinfer help run",
        },
};

const char *const flag_group_titles[N_GROUPS] = {
    [GROUP_MODEL] = "Model",     [GROUP_TEXT] = "Text",         [GROUP_TASK] = "Task",
    [GROUP_COMPUTE] = "Compute", [GROUP_PLACEMENT] = "Placement",
    [GROUP_SAMPLING] = "Sampling", [GROUP_OUTPUT] = "Output",
};

#define KV_TYPES "f16|f32|q8_0" /* order of ats_kv_type */

const struct flag flag_table[N_FLAGS] = {
    /* model */
    [FLAG_MODEL] = {.names = {"-m", "--model"}, .value = "FILE", .kind = FLAG_TEXT,
                    .group = GROUP_MODEL, .commands = ENGINE | INSP | TOK | SIM | PROF,
                    .takes_file = true,
                    .llama_env = "MODEL",
                    .help = "GGUF file (any part, if it is split); without it the model that "
                            "./demo fetched"},
    [FLAG_FORCE] = {.names = {"--force"}, .kind = FLAG_SWITCH, .group = GROUP_MODEL,
                    .commands = ENGINE | TOK,
                    .help = "go on where a guess is possible: an unknown pre-tokenizer"},

    /* compute */
    [FLAG_CTX_SIZE] = {.names = {"-c", "--ctx-size"}, .value = "N", .kind = FLAG_INTEGER,
                       .group = GROUP_COMPUTE, .commands = RUN | LOGITS | PLAN, .min = 0, .max = CTX_MAX,
                       .default_value = "0", .llama_env = "CTX_SIZE",
                       .help = "tokens the context holds; 0: what the model allows, at most 8192"},
    [FLAG_BATCH_SIZE] = {.names = {"-b", "--batch-size"}, .value = "N", .kind = FLAG_INTEGER,
                         .group = GROUP_COMPUTE, .commands = RUN | PPL | LOGITS | PLAN, .min = 0,
                         .max = BATCH_MAX, .default_value = "0", .llama_env = "BATCH",
                         .help = "tokens of a prompt evaluated at a time; 0: 512, or what measured "
                                 "times say"},
    [FLAG_UBATCH_SIZE] = {.names = {"-ub", "--ubatch-size"}, .value = "N", .kind = FLAG_INTEGER,
                          .group = GROUP_COMPUTE, .commands = RUN | PPL | LOGITS | PLAN, .min = 1,
                          .max = BATCH_MAX, .llama_env = "UBATCH",
                          .help = "the same as -b; the smaller of the two counts"},
    [FLAG_THREADS] = {.names = {"-t", "--threads"}, .value = "N", .kind = FLAG_INTEGER,
                      .group = GROUP_COMPUTE, .commands = RUN | PPL | LOGITS | PLAN | PROF,
                      .min = 0, .max = THREADS_MAX, .default_value = "0", .llama_env = "THREADS",
                      .help = "threads; 0: one for each fast core this process may use"},
    [FLAG_THREADS_BATCH] = {.names = {"-tb", "--threads-batch"}, .value = "N",
                            .kind = FLAG_INTEGER, .group = GROUP_COMPUTE, .commands = ENGINE,
                            .min = 0, .max = THREADS_MAX, .default_value = "0",
                            .llama_env = "THREADS_BATCH",
                            .help = "threads for prompts; 0: as many as -t"},
    [FLAG_PIN] = {.names = {"--pin"}, .value = "MODE", .kind = FLAG_CHOICE,
                  .group = GROUP_COMPUTE, .commands = ENGINE, .choices = "off|on",
                  .default_value = "off",
                  .help = "bind each thread to a core of its own, the fastest first: steadier where "
                          "nothing else runs, slower where something does"},
    [FLAG_CACHE_TYPE_K] = {.names = {"-ctk", "--cache-type-k"}, .value = "TYPE",
                           .kind = FLAG_CHOICE, .group = GROUP_COMPUTE,
                           .commands = RUN | PPL | LOGITS | PLAN | SIM | PROF,
                           .choices = KV_TYPES,
                           .default_value = "f16", .llama_env = "CACHE_TYPE_K",
                           .help = "type of the cached keys"},
    [FLAG_CACHE_TYPE_V] = {.names = {"-ctv", "--cache-type-v"}, .value = "TYPE",
                           .kind = FLAG_CHOICE, .group = GROUP_COMPUTE,
                           .commands = RUN | PPL | LOGITS | PLAN | SIM | PROF,
                           .choices = KV_TYPES,
                           .default_value = "f16", .llama_env = "CACHE_TYPE_V",
                           .help = "type of the cached values"},
    [FLAG_MATH] = {.names = {"--math"}, .value = "CLASS", .kind = FLAG_CHOICE,
                   .group = GROUP_COMPUTE, .commands = ENGINE | SIM | PROF,
                   .choices = "q8|f32|bf16",
                   .default_value = "q8",
                   .help = "q8: activations in 8 bits for quantised weights; f32: float "
                           "activations everywhere, slower; bf16: as q8, and BF16 weights with "
                           "activations rounded to bf16"},
    [FLAG_DEVICE] = {.names = {"-dev", "--device"}, .value = "LIST", .kind = FLAG_TEXT,
                     .group = GROUP_COMPUTE, .commands = ENGINE | PROF,
                     .llama_env = "DEVICE",
                     .help = "devices to compute on, separated by commas: cpu, vulkan, or a name that "
                             "doctor lists (default: cpu, and a GPU beside it if there is one)"},
    [FLAG_GPU_LAYERS] = {.names = {"-ngl", "--gpu-layers", "--n-gpu-layers"}, .value = "N",
                         .kind = FLAG_TEXT, .group = GROUP_PLACEMENT, .commands = ENGINE,
                         .llama_env = "N_GPU_LAYERS",
                         .help = "last N layers on the GPU, with more than there are also the "
                                 "output; all; auto: as many as fit (default); without --device: "
                                 "on the best GPU there is"},
    [FLAG_OVERRIDE_TENSOR] = {.names = {"-ot", "--override-tensor"}, .value = "REGEX=DEVICE",
                              .kind = FLAG_TEXTS, .group = GROUP_PLACEMENT, .commands = ENGINE,
                              .llama_env = "OVERRIDE_TENSOR",
                              .help = "tensors whose name matches go to cpu, gpu or a device by "
                                      "its name, whatever their layer does; may be repeated, the "
                                      "first that matches counts"},
    [FLAG_CPU_MOE] = {.names = {"-cmoe", "--cpu-moe"}, .kind = FLAG_SWITCH,
                      .group = GROUP_PLACEMENT, .commands = ENGINE, .llama_env = "CPU_MOE",
                      .help = "routed experts of all layers on the CPU"},
    [FLAG_N_CPU_MOE] = {.names = {"-ncmoe", "--n-cpu-moe"}, .value = "N", .kind = FLAG_INTEGER,
                        .group = GROUP_PLACEMENT, .commands = ENGINE, .min = 0, .max = 100000,
                        .llama_env = "N_CPU_MOE",
                        .help = "routed experts of the first N layers on the CPU"},
    [FLAG_VRAM] = {.names = {"--vram"}, .value = "MIB", .kind = FLAG_INTEGER,
                   .group = GROUP_PLACEMENT, .commands = ENGINE | SIM, .min = 1, .max = 16777216,
                   .help = "use so much of the GPU's memory at most (default: what is free, less "
                           "some room)"},
    [FLAG_PROFILE] = {.names = {"--profile"}, .value = "auto|off|FILE", .kind = FLAG_TEXT,
                      .group = GROUP_PLACEMENT, .commands = ENGINE, .takes_file = true,
                      .help = "place by times of this machine: kept ones, measured at the first "
                              "load of a model (auto, the default), those of a file, or none: as "
                              "many layers as fit (off)"},
    [FLAG_ONE_PROGRAM] = {.names = {"--one-program"}, .kind = FLAG_SWITCH,
                          .group = GROUP_PLACEMENT, .commands = ENGINE,
                          .help = "prompts are computed where the answer is; else, where that is "
                                  "faster by the times, they stream to the GPU what the CPU "
                                  "computes in answers"},
    [FLAG_PLAN_DEPTH] = {.names = {"--plan-depth"}, .value = "N", .kind = FLAG_INTEGER,
                         .group = GROUP_PLACEMENT, .commands = ENGINE, .min = 0, .max = CTX_MAX,
                         .default_value = "0",
                         .help = "tokens in the context that answers are planned for; 0: half of "
                                 "them after 2048, half after half the context, at most 8192"},
    [FLAG_DYNAMIC] = {.names = {"--dynamic"}, .value = "memory|on|off", .kind = FLAG_CHOICE,
                      .group = GROUP_PLACEMENT, .commands = ENGINE, .choices = "memory|on|off",
                      .default_value = "memory",
                      .help = "plan again while tokens are generated, when other programs take the "
                              "GPU's memory or give it back (memory), or also their share of a "
                              "device or the link, if the plan was made by a profile (on)"},
    [FLAG_REPLAN_THRESHOLD] = {.names = {"--replan-threshold"}, .value = "X", .kind = FLAG_REAL,
                               .group = GROUP_PLACEMENT, .commands = ENGINE | SIM,
                               .min = 0.001, .max = 10, .default_value = "0.15",
                               .help = "plan again when a device or the link is off by this share"},
    [FLAG_REPLAN_INTERVAL] = {.names = {"--replan-interval"}, .value = "N", .kind = FLAG_REAL,
                              .group = GROUP_PLACEMENT, .commands = ENGINE | SIM,
                              .min = 1, .max = 1000000, .default_value = "5",
                              .help = "rounds from one plan to the next, at least"},
    [FLAG_PLAN] = {.names = {"--plan"}, .value = "FILE", .kind = FLAG_TEXT,
                   .group = GROUP_PLACEMENT, .commands = ENGINE | SIM, .takes_file = true,
                   .help = "take the home of everything from a file that --save-plan wrote"},
    [FLAG_SAVE_PLAN] = {.names = {"--save-plan"}, .value = "FILE", .kind = FLAG_TEXT,
                        .group = GROUP_PLACEMENT, .commands = ENGINE, .only_here = true,
                        .takes_file = true, .help = "write the plan in force to a file"},
    [FLAG_CPU_ISA] = {.names = {"--cpu-isa"}, .value = "NAME", .kind = FLAG_CHOICE,
                      .group = GROUP_COMPUTE, .commands = ENGINE,
                      .choices = "native|ref|avx2|avxvnni|avx512|avx512bf16|amx|amxbf16|neon|neon_dot|neon_i8mm", .default_value = "native",
                      .help = "instruction set of the processor kernels; native: the best there "
                              "is"},
    [FLAG_NO_REPACK] = {.names = {"-nr", "--no-repack"}, .kind = FLAG_SWITCH,
                        .group = GROUP_COMPUTE, .commands = ENGINE,
                        .help = "read weights as the file has them: a quicker start, less memory, "
                                "slower answers"},
    [FLAG_NO_FUSION] = {.names = {"--no-fusion"}, .kind = FLAG_SWITCH, .group = GROUP_COMPUTE,
                        .commands = ENGINE, .hidden = true,
                        .help = "every operator by itself"},
    [FLAG_PLAN_SEED] = {.names = {"--plan-seed"}, .value = "N", .kind = FLAG_SEED,
                        .group = GROUP_COMPUTE, .commands = ENGINE, .hidden = true,
                        .help = "divide the work over the devices at random"},

    /* output */
    [FLAG_TRACE] = {.names = {"--trace"}, .value = "FILE", .kind = FLAG_TEXT,
                    .group = GROUP_OUTPUT, .commands = ENGINE | SIM, .only_here = true,
                    .takes_file = true,
                    .help = "write what each device did when, round by round, to a file that "
                            "Perfetto and Chrome show"},
    [FLAG_JSON] = {.names = {"--json"}, .kind = FLAG_SWITCH, .group = GROUP_OUTPUT,
                   .commands = REPORT | VERS, .help = "print one JSON object"},
    [FLAG_QUIET] = {.names = {"-q", "--quiet"}, .kind = FLAG_SWITCH, .group = GROUP_OUTPUT,
                    .commands = REPORT, .help = "no progress, notes or timings, only errors"},
    [FLAG_VERBOSE] = {.names = {"-v", "--verbose"}, .kind = FLAG_SWITCH, .group = GROUP_OUTPUT,
                      .commands = REPORT, .help = "tell more about what happens"},
    [FLAG_HELP] = {.names = {"-h", "--help"}, .kind = FLAG_SWITCH, .group = GROUP_OUTPUT,
                   .commands = ALL | CMD_BIT(CMD_HELP), .only_here = true,
                   .help = "print this help"},

    /* run: text */
    [FLAG_PROMPT] = {.names = {"-p", "--prompt"}, .value = "TEXT", .kind = FLAG_TEXT,
                     .group = GROUP_TEXT, .commands = RUN, .only_here = true,
                     .help = "answer this and end"},
    [FLAG_FILE] = {.names = {"-f", "--file"}, .value = "FILE", .kind = FLAG_TEXT,
                   .group = GROUP_TEXT, .commands = RUN, .only_here = true, .takes_file = true,
                   .help = "take the prompt from a file (\"-\": standard input), after that of -p"},
    [FLAG_SYSTEM_PROMPT] = {.names = {"-sys", "--system-prompt"}, .value = "TEXT",
                            .kind = FLAG_TEXT, .group = GROUP_TEXT, .commands = RUN,
                            .help = "the system message of the chat"},
    [FLAG_PREDICT] = {.names = {"-n", "--predict", "--n-predict"}, .value = "N",
                      .kind = FLAG_INTEGER, .group = GROUP_TEXT, .commands = RUN, .min = -1,
                      .max = CTX_MAX, .default_value = "-1", .llama_env = "N_PREDICT",
                      .help = "tokens to generate at most; -1: until the model ends"},
    [FLAG_NO_TEMPLATE] = {.names = {"--no-template"}, .kind = FLAG_SWITCH, .group = GROUP_TEXT,
                          .commands = RUN,
                          .help = "continue the prompt as plain text, without the chat template"},
    [FLAG_TEMPLATE_KWARGS] = {.names = {"--chat-template-kwargs"}, .value = "JSON",
                              .kind = FLAG_TEXT, .group = GROUP_TEXT, .commands = RUN,
                              .llama_env = "CHAT_TEMPLATE_KWARGS",
                              .help = "further variables of the chat template, a JSON object"},
    [FLAG_REASONING_FORMAT] = {.names = {"--reasoning-format"}, .value = "HOW",
                               .kind = FLAG_CHOICE, .group = GROUP_TEXT, .commands = RUN,
                               .choices = "auto|none|hidden", .default_value = "auto",
                               .llama_env = "THINK",
                               .help = "thoughts of the model: auto: dimmed before the answer (on a "
                                       "terminal, or by themselves in --json), none: as part of "
                                       "the text, hidden: not shown"},
    [FLAG_REASONING_BUDGET] = {.names = {"--reasoning-budget"}, .value = "N",
                               .kind = FLAG_INTEGER, .group = GROUP_TEXT, .commands = RUN,
                               .min = -1, .max = 0, .default_value = "-1",
                               .llama_env = "THINK_BUDGET",
                               .help = "0: asks the template for an answer without thoughts; -1: "
                                       "as the model likes"},
    [FLAG_REVERSE_PROMPT] = {.names = {"-r", "--reverse-prompt", "--stop"}, .value = "TEXT",
                             .kind = FLAG_TEXTS, .group = GROUP_TEXT, .commands = RUN,
                             .help = "end the answer before this text; may be repeated"},
    [FLAG_IGNORE_EOS] = {.names = {"--ignore-eos"}, .kind = FLAG_SWITCH, .group = GROUP_TEXT,
                         .commands = RUN, .help = "end tokens do not end the answer"},
    [FLAG_NO_HISTORY] = {.names = {"--no-history"}, .kind = FLAG_SWITCH, .group = GROUP_TEXT,
                         .commands = RUN, .help = "neither read nor keep the history of lines"},

    /* sampling */
    [FLAG_SEED_VALUE] = {.names = {"-s", "--seed"}, .value = "N", .kind = FLAG_SEED,
                         .group = GROUP_SAMPLING, .commands = RUN,
                         .help = "same seed, same answer; -1: random (default)"},
    [FLAG_TEMP] = {.names = {"--temp", "--temperature"}, .value = "X", .kind = FLAG_REAL,
                   .group = GROUP_SAMPLING, .commands = RUN, .min = 0, .max = 100,
                   .help = "temperature; 0: always the most probable token (default: the "
                           "model's, or 0.8)"},
    [FLAG_TOP_K] = {.names = {"--top-k"}, .value = "N", .kind = FLAG_INTEGER,
                    .group = GROUP_SAMPLING, .commands = RUN, .min = 0, .max = 10000000,
                    .llama_env = "TOP_K",
                    .help = "keep the N most probable tokens; 0: all (default: the model's, or "
                            "40)"},
    [FLAG_TOP_P] = {.names = {"--top-p"}, .value = "X", .kind = FLAG_REAL,
                    .group = GROUP_SAMPLING, .commands = RUN, .min = 0, .max = 1,
                    .help = "keep the most probable tokens that make up this share; 1: off "
                            "(default: the model's, or 0.95)"},
    [FLAG_MIN_P] = {.names = {"--min-p"}, .value = "X", .kind = FLAG_REAL,
                    .group = GROUP_SAMPLING, .commands = RUN, .min = 0, .max = 1,
                    .help = "keep tokens at least this probable, relative to the best; 0: off "
                            "(default: the model's, or 0.05)"},
    [FLAG_TYPICAL] = {.names = {"--typical", "--typical-p"}, .value = "X", .kind = FLAG_REAL,
                      .group = GROUP_SAMPLING, .commands = RUN, .min = 0, .max = 1,
                      .help = "locally typical sampling; 1: off (default)"},
    [FLAG_REPEAT_PENALTY] = {.names = {"--repeat-penalty"}, .value = "X", .kind = FLAG_REAL,
                             .group = GROUP_SAMPLING, .commands = RUN, .min = 0.01, .max = 100,
                             .help = "divide the logits of recent tokens; 1: off (default)"},
    [FLAG_REPEAT_LAST_N] = {.names = {"--repeat-last-n"}, .value = "N", .kind = FLAG_INTEGER,
                            .group = GROUP_SAMPLING, .commands = RUN, .min = -1, .max = CTX_MAX,
                            .help = "tokens that count as recent; -1: the context (default: 64)"},
    [FLAG_PRESENCE_PENALTY] = {.names = {"--presence-penalty"}, .value = "X", .kind = FLAG_REAL,
                               .group = GROUP_SAMPLING, .commands = RUN, .min = -100, .max = 100,
                               .help = "taken from the logits of tokens that occurred; 0: off "
                                       "(default)"},
    [FLAG_FREQUENCY_PENALTY] = {.names = {"--frequency-penalty"}, .value = "X", .kind = FLAG_REAL,
                                .group = GROUP_SAMPLING, .commands = RUN, .min = -100,
                                .max = 100,
                                .help = "the same, once for each time a token occurred; 0: off "
                                        "(default)"},
    [FLAG_DRY_MULTIPLIER] = {.names = {"--dry-multiplier"}, .value = "X", .kind = FLAG_REAL,
                             .group = GROUP_SAMPLING, .commands = RUN, .min = 0, .max = 100,
                             .help = "DRY: strength against repeated sequences; 0: off (default)"},
    [FLAG_DRY_BASE] = {.names = {"--dry-base"}, .value = "X", .kind = FLAG_REAL,
                       .group = GROUP_SAMPLING, .commands = RUN, .min = 1, .max = 100,
                       .help = "DRY: growth with each further token (default: 1.75)"},
    [FLAG_DRY_ALLOWED_LENGTH] = {.names = {"--dry-allowed-length"}, .value = "N",
                                 .kind = FLAG_INTEGER, .group = GROUP_SAMPLING, .commands = RUN,
                                 .min = 1, .max = CTX_MAX,
                                 .help = "DRY: repeats up to this length cost nothing (default: "
                                         "2)"},
    [FLAG_DRY_PENALTY_LAST_N] = {.names = {"--dry-penalty-last-n"}, .value = "N",
                                 .kind = FLAG_INTEGER, .group = GROUP_SAMPLING, .commands = RUN,
                                 .min = -1, .max = CTX_MAX,
                                 .help = "DRY: tokens looked back; -1: the context (default)"},
    [FLAG_DRY_BREAKER] = {.names = {"--dry-sequence-breaker"}, .value = "TEXT",
                          .kind = FLAG_TEXTS, .group = GROUP_SAMPLING, .commands = RUN,
                          .help = "DRY: a text at which sequences end, may be repeated; none: no "
                                  "breakers (default: newline, colon, double quote, asterisk)"},
    [FLAG_XTC_PROBABILITY] = {.names = {"--xtc-probability"}, .value = "X", .kind = FLAG_REAL,
                              .group = GROUP_SAMPLING, .commands = RUN, .min = 0, .max = 1,
                              .help = "XTC: chance of leaving out the top tokens; 0: off "
                                      "(default)"},
    [FLAG_XTC_THRESHOLD] = {.names = {"--xtc-threshold"}, .value = "X", .kind = FLAG_REAL,
                            .group = GROUP_SAMPLING, .commands = RUN, .min = 0, .max = 1,
                            .help = "XTC: probability that makes a token a top one (default: "
                                    "0.1)"},
    [FLAG_MIROSTAT] = {.names = {"--mirostat"}, .value = "N", .kind = FLAG_CHOICE,
                       .group = GROUP_SAMPLING, .commands = RUN, .choices = "0|2",
                       .help = "2: Mirostat 2 instead of top-k to temperature; 0: off (default)"},
    [FLAG_MIROSTAT_ENT] = {.names = {"--mirostat-ent"}, .value = "X", .kind = FLAG_REAL,
                           .group = GROUP_SAMPLING, .commands = RUN, .min = 0, .max = 100,
                           .help = "Mirostat: the surprise aimed at, tau (default: 5)"},
    [FLAG_MIROSTAT_LR] = {.names = {"--mirostat-lr"}, .value = "X", .kind = FLAG_REAL,
                          .group = GROUP_SAMPLING, .commands = RUN, .min = 0, .max = 1,
                          .help = "Mirostat: the learning rate, eta (default: 0.1)"},
    [FLAG_LOGIT_BIAS] = {.names = {"-l", "--logit-bias"}, .value = "ID+BIAS", .kind = FLAG_TEXTS,
                         .group = GROUP_SAMPLING, .commands = RUN,
                         .help = "add to a token's logit (\"15043+1\", \"15043-inf\"); may be "
                                 "repeated"},

    /* bench */
    [FLAG_BENCH_PROMPT] = {.names = {"-p", "--n-prompt"}, .value = "N,...",
                           .kind = FLAG_INTEGERS, .group = GROUP_TASK, .commands = BENCH,
                           .min = 0, .max = CTX_MAX, .default_value = "512",
                           .help = "prompt lengths to time; 0: none"},
    [FLAG_BENCH_GEN] = {.names = {"-n", "--n-gen"}, .value = "N,...", .kind = FLAG_INTEGERS,
                        .group = GROUP_TASK, .commands = BENCH, .min = 0, .max = CTX_MAX,
                        .default_value = "128", .help = "generation lengths to time; 0: none"},
    [FLAG_BENCH_PG] = {.names = {"-pg"}, .value = "PP,TG", .kind = FLAG_TEXTS,
                       .group = GROUP_TASK, .commands = BENCH, .only_here = true,
                       .help = "a prompt of PP tokens and TG generated ones, timed together; may "
                               "be repeated"},
    [FLAG_BENCH_DEPTH] = {.names = {"-d", "--n-depth"}, .value = "N,...", .kind = FLAG_INTEGERS,
                          .group = GROUP_TASK, .commands = BENCH, .min = 0, .max = CTX_MAX,
                          .default_value = "0",
                          .help = "tokens already in the context before each test"},
    [FLAG_BENCH_REPETITIONS] = {.names = {"-r", "--repetitions"}, .value = "N",
                                .kind = FLAG_INTEGER, .group = GROUP_TASK, .commands = BENCH,
                                .min = 1, .max = 10000, .default_value = "5",
                                .help = "timed repetitions of each test"},
    [FLAG_BENCH_OUTPUT] = {.names = {"-o", "--output"}, .value = "FORMAT", .kind = FLAG_CHOICE,
                           .group = GROUP_OUTPUT, .commands = BENCH,
                           .choices = "md|csv|json|jsonl", .default_value = "md",
                           .help = "form of the table"},
    [FLAG_BENCH_FILE] = {.names = {"-f", "--file"}, .value = "FILE", .kind = FLAG_TEXT,
                         .group = GROUP_TASK, .commands = BENCH, .only_here = true,
                         .takes_file = true,
                         .help = "take the token stream from a text instead of a seeded "
                                 "generator (mixtures of experts differ)"},
    [FLAG_BENCH_NO_WARMUP] = {.names = {"--no-warmup"}, .kind = FLAG_SWITCH,
                              .group = GROUP_TASK, .commands = BENCH,
                              .help = "no run before the timed ones"},
    [FLAG_BENCH_METRICS] = {.names = {"--metrics"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                            .commands = BENCH,
                            .help = "measure one more repetition: busy shares, bytes over the "
                                    "link, submissions, work of the host a round (with several "
                                    "devices always)"},
    [FLAG_BENCH_BATCH] = {.names = {"-b", "--batch-size"}, .value = "N,...",
                          .kind = FLAG_INTEGERS, .group = GROUP_COMPUTE, .commands = BENCH,
                          .min = 0, .max = BATCH_MAX, .default_value = "0",
                          .llama_env = "BATCH",
                          .help = "tokens of a prompt evaluated at a time; 0: 512, or what "
                                  "measured times say"},
    [FLAG_BENCH_UBATCH] = {.names = {"-ub", "--ubatch-size"}, .value = "N",
                           .kind = FLAG_INTEGER, .group = GROUP_COMPUTE, .commands = BENCH,
                           .min = 1, .max = BATCH_MAX, .llama_env = "UBATCH",
                           .help = "the same as -b; the smaller of the two counts"},
    [FLAG_BENCH_THREADS] = {.names = {"-t", "--threads"}, .value = "N,...",
                            .kind = FLAG_INTEGERS, .group = GROUP_COMPUTE, .commands = BENCH,
                            .min = 0, .max = THREADS_MAX, .default_value = "0",
                            .llama_env = "THREADS",
                            .help = "threads; 0: one for each fast core this process may use"},
    [FLAG_BENCH_TYPE_K] = {.names = {"-ctk", "--cache-type-k"}, .value = "TYPE,...",
                           .kind = FLAG_CHOICES, .group = GROUP_COMPUTE, .commands = BENCH,
                           .choices = KV_TYPES, .default_value = "f16",
                           .llama_env = "CACHE_TYPE_K", .help = "types of the cached keys"},
    [FLAG_BENCH_TYPE_V] = {.names = {"-ctv", "--cache-type-v"}, .value = "TYPE,...",
                           .kind = FLAG_CHOICES, .group = GROUP_COMPUTE, .commands = BENCH,
                           .choices = KV_TYPES, .default_value = "f16",
                           .llama_env = "CACHE_TYPE_V", .help = "types of the cached values"},

    /* perplexity */
    [FLAG_PPL_FILE] = {.names = {"-f", "--file"}, .value = "FILE", .kind = FLAG_TEXT,
                       .group = GROUP_TASK, .commands = PPL, .only_here = true,
                       .takes_file = true, .help = "the text (\"-\": standard input)"},
    [FLAG_PPL_CTX] = {.names = {"-c", "--ctx-size"}, .value = "N", .kind = FLAG_INTEGER,
                      .group = GROUP_TASK, .commands = PPL, .min = 4, .max = CTX_MAX,
                      .default_value = "512", .help = "tokens of a window"},
    [FLAG_PPL_CHUNKS] = {.names = {"--chunks"}, .value = "N", .kind = FLAG_INTEGER,
                         .group = GROUP_TASK, .commands = PPL, .min = -1, .max = CTX_MAX,
                         .default_value = "-1", .help = "windows at most; -1: all"},

    /* inspect */
    [FLAG_INSPECT_TENSORS] = {.names = {"--tensors"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                              .commands = INSP | PLAN, .only_here = true,
                              .help = "list the tensors"},
    [FLAG_INSPECT_KV] = {.names = {"--kv"}, .value = "KEY", .kind = FLAG_TEXT,
                         .group = GROUP_TASK, .commands = INSP, .only_here = true,
                         .help = "print one value of the metadata"},
    [FLAG_INSPECT_TEMPLATE] = {.names = {"--template"}, .kind = FLAG_SWITCH,
                               .group = GROUP_TASK, .commands = INSP, .only_here = true,
                               .help = "print the chat template"},

    /* tokenize */
    [FLAG_TOK_FILE] = {.names = {"-f", "--file"}, .value = "FILE", .kind = FLAG_TEXT,
                       .group = GROUP_TASK, .commands = TOK, .only_here = true,
                       .takes_file = true, .help = "the text (\"-\": standard input)"},
    [FLAG_TOK_IDS] = {.names = {"--ids"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                      .commands = TOK, .only_here = true, .help = "print one row of ids"},
    [FLAG_TOK_PIECES] = {.names = {"--pieces"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                         .commands = TOK, .only_here = true,
                         .help = "print a table of ids and pieces"},
    [FLAG_TOK_DECODE] = {.names = {"--decode"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                         .commands = TOK, .only_here = true,
                         .help = "the input is ids, the answer their text"},
    [FLAG_TOK_SPECIAL] = {.names = {"--special"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                          .commands = TOK, .only_here = true,
                          .help = "add BOS and EOS as the model says (default); with --decode: "
                                  "show control tokens"},
    [FLAG_TOK_NO_SPECIAL] = {.names = {"--no-special"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                             .commands = TOK, .only_here = true,
                             .help = "add nothing; with --decode: leave control tokens out "
                                     "(default)"},
    [FLAG_TOK_PARSE_SPECIAL] = {.names = {"--parse-special"}, .kind = FLAG_SWITCH,
                                .group = GROUP_TASK, .commands = TOK, .only_here = true,
                                .help = "names of control tokens in the text count as such"},

    /* logits */
    [FLAG_LOGITS_IDS] = {.names = {"--ids"}, .value = "FILE", .kind = FLAG_TEXT,
                         .group = GROUP_TASK, .commands = LOGITS, .only_here = true,
                         .takes_file = true,
                         .help = "whitespace-separated token ids (\"-\": standard input)"},
    [FLAG_LOGITS_OUTPUT] = {.names = {"-o", "--output"}, .value = "FILE", .kind = FLAG_TEXT,
                            .group = GROUP_TASK, .commands = LOGITS, .only_here = true,
                            .takes_file = true, .help = "the NumPy file to write"},
    [FLAG_LOGITS_SEQS] = {.names = {"--seqs"}, .value = "N", .kind = FLAG_INTEGER,
                          .group = GROUP_TASK, .commands = LOGITS, .only_here = true, .min = 1,
                          .max = 256, .default_value = "1", .hidden = true,
                          .help = "evaluate the ids in N sessions side by side; unequal logits "
                                  "are an error"},

    /* simulate */
    [FLAG_SIM_MACHINE] = {.names = {"--machine"}, .value = "FILE", .kind = FLAG_TEXT,
                          .group = GROUP_TASK, .commands = SIM | PLAN, .takes_file = true,
                          .help = "the description of the machine, or a profile measured on one; simulate: "
                                  "without it this one, if it was measured"},
    [FLAG_SIM_GRANULARITY] = {.names = {"--granularity"}, .value = "UNIT", .kind = FLAG_CHOICE,
                              .group = GROUP_PLACEMENT, .commands = ENGINE | SIM,
                              .choices = "layer|expert|tensor|shard", .default_value = "shard",
                              .help = "what is placed as a whole, by measured times; shard: blocks "
                                      "may be divided over both devices"},
    [FLAG_SIM_TRANSFER] = {.names = {"--transfer"}, .value = "RULE", .kind = FLAG_CHOICE,
                           .group = GROUP_PLACEMENT, .commands = ENGINE | SIM,
                           .choices = "none|paper|ours", .default_value = "ours",
                           .help = "how it is chosen which weights of the host are copied to the GPU "
                                   "for a round"},
    [FLAG_SIM_MOE_RULE] = {.names = {"--moe-rule"}, .value = "RULE", .kind = FLAG_CHOICE,
                           .group = GROUP_PLACEMENT, .commands = ENGINE | SIM,
                           .choices = "free|paper",
                           .default_value = "free",
                           .help = "paper: everything but the experts comes first (by tensor)"},
    [FLAG_SIM_CTX] = {.names = {"-c", "--ctx-size"}, .value = "N", .kind = FLAG_INTEGER,
                      .group = GROUP_TASK, .commands = SIM, .min = 1, .max = CTX_MAX,
                      .default_value = "4096", .llama_env = "CTX_SIZE",
                      .help = "tokens that the cache is reserved for"},
    [FLAG_SIM_PROMPT] = {.names = {"-p", "--n-prompt"}, .value = "N", .kind = FLAG_INTEGER,
                         .group = GROUP_TASK, .commands = SIM, .min = 0, .max = CTX_MAX,
                         .default_value = "0",
                         .help = "tokens of the prompt; 0: 2048, or the context"},
    [FLAG_SIM_DEPTH] = {.names = {"-d", "--n-depth"}, .value = "N", .kind = FLAG_INTEGER,
                        .group = GROUP_TASK, .commands = SIM, .min = 0, .max = CTX_MAX,
                        .default_value = "0",
                        .help = "tokens before the one whose decode is timed; 0: the prompt"},
    [FLAG_SIM_BATCH] = {.names = {"-b", "--batch-size"}, .value = "N", .kind = FLAG_INTEGER,
                        .group = GROUP_TASK, .commands = SIM, .min = 0, .max = BATCH_MAX,
                        .default_value = "0", .llama_env = "BATCH",
                        .help = "tokens of a chunk of the prompt; 0: chosen"},
    [FLAG_SIM_SLOTS] = {.names = {"--slots"}, .value = "N", .kind = FLAG_INTEGER,
                        .group = GROUP_TASK, .commands = SIM, .min = -1, .max = 64,
                        .default_value = "-1",
                        .help = "buffers for streamed weights; -1: chosen"},
    [FLAG_SIM_STREAM_KV] = {.names = {"--stream-kv"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                            .commands = SIM,
                            .help = "caches of the host may be copied to the GPU for a round, too "
                                    "(this engine does not do it yet)"},
    [FLAG_SIM_HIT] = {.names = {"--expert-hit"}, .value = "X", .kind = FLAG_REAL,
                      .group = GROUP_TASK, .commands = SIM | PLAN, .min = 0, .max = 1,
                      .default_value = "0",
                      .help = "the most used share s of a layer's experts gets s^X of the "
                              "choices; 1: uniform; 0: the shape's"},
    [FLAG_SIM_ABLATION] = {.names = {"--ablation"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                           .commands = SIM,
                           .help = "tell what placement, coordination, transfer and shards gain one "
                                   "after the other, and each granularity, with the same memory"},
    [FLAG_SIM_LOAD] = {.names = {"--load"}, .value = "FILE", .kind = FLAG_TEXT,
                       .group = GROUP_TASK, .commands = SIM, .takes_file = true,
                       .help = "a trace of what other programs take of the machine: tell a long "
                               "decode under it, with the plan as it is, planned again, and by "
                               "one who knows the load"},
    [FLAG_PLAN_DIFF] = {.names = {"--diff"}, .value = "PLAN", .kind = FLAG_TEXT,
                        .group = GROUP_TASK, .commands = PLAN, .only_here = true,
                        .takes_file = true,
                        .help = "compare with the plan of a file, or with the best one by layer, "
                                "expert, tensor or shard: on the machine of --machine, or on this "
                                "one by its times"},

    /* profile */
    [FLAG_PROFILE_QUICK] = {.names = {"--quick"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                            .commands = PROF,
                            .help = "fewer token counts, shares and depths"},
    [FLAG_PROFILE_FORCE] = {.names = {"--force"}, .kind = FLAG_SWITCH, .group = GROUP_TASK,
                            .commands = PROF, .only_here = true,
                            .help = "measure again, even if there is a profile"},
};
