// Package kerneltest is the suite that every [kernel.Host] must pass, with real kernels.
package kerneltest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/kernel"
	"sandbox.internal/test/wait"
)

// Options say what the suite may expect of a host.
type Options struct {
	// Open returns the host under test. The test ends it, with the kernels that it started.
	Open func(t *testing.T) kernel.Host
	// Languages are tested each in turn. Their kernels must be installed.
	Languages []Language
	// ExitTime is how long a kernel's death by kill -9 may stay unnoticed.
	ExitTime time.Duration
}

// Run runs the suite.
func Run(t *testing.T, options Options) {
	t.Run("contract", func(t *testing.T) {
		t.Parallel()
		testHost(t, options.Open(t))
	})
	for _, language := range options.Languages {
		t.Run(language.Name, func(t *testing.T) {
			t.Parallel()
			s := suite{host: options.Open(t), language: language, exitTime: options.ExitTime}
			// Kernels by the dozen would only wait for one another: one test after the other.
			t.Run("Cells", s.testCells)
			t.Run("VariablesPersist", s.testVariablesPersist)
			t.Run("Prepare", s.testPrepare)
			t.Run("KernelsAreIsolated", s.testKernelsAreIsolated)
			t.Run("ManyLines", s.testManyLines)
			t.Run("Interrupt", s.testInterrupt)
			t.Run("InterruptAtOnce", s.testInterruptAtOnce)
			t.Run("CancelledExecute", s.testCancelledExecute)
			t.Run("KilledKernel", s.testKilledKernel)
			t.Run("Stop", s.testStop)
			t.Run("WorkingDirectory", s.testWorkingDirectory)
		})
	}
}

// testHost tests what needs no language.
func testHost(t *testing.T, host kernel.Host) {
	t.Run("Specs", func(t *testing.T) {
		specs, err := host.Specs(wait.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		if len(specs) == 0 {
			t.Fatal("no kernelspec is installed")
		}
		for i, spec := range specs {
			if spec.Name == "" || spec.Language == "" || spec.DisplayName == "" {
				t.Errorf("a kernelspec with empty fields: %+v", spec)
			}
			if i > 0 && specs[i-1].Name >= spec.Name {
				t.Errorf("not sorted: %q comes before %q", specs[i-1].Name, spec.Name)
			}
		}
	})
	for _, name := range []string{"no-such-kernel", "", "../python3"} {
		t.Run("UnknownSpec/"+name, func(t *testing.T) {
			if _, err := host.Start(wait.Context(t), name, kernel.StartOptions{}); !errors.Is(err, kernel.ErrNoSpec) {
				t.Errorf("starting a kernel of spec %q: %v, want ErrNoSpec", name, err)
			}
		})
	}
	t.Run("CancelledStart", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		specs, err := host.Specs(wait.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := host.Start(ctx, specs[0].Name, kernel.StartOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("a start whose context had ended: %v", err)
		}
	})
}

// suite is the suite for one language.
type suite struct {
	host     kernel.Host
	language Language
	exitTime time.Duration
}

func (s suite) start(t *testing.T) kernel.Kernel {
	t.Helper()
	k, err := s.host.Start(wait.Context(t), s.language.Spec, kernel.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Stop(context.Background()); err != nil {
			t.Errorf("stopping the kernel: %v", err)
		}
	})
	return k
}

// said is everything that a cell said.
type said struct {
	outputs []kernel.Output
	reply   kernel.Reply
}

func run(t *testing.T, k kernel.Kernel, code string) said {
	t.Helper()
	var all said
	var err error
	all.reply, err = k.Execute(wait.Context(t), code, func(o kernel.Output) { all.outputs = append(all.outputs, o) })
	if err != nil {
		t.Fatalf("executing %q: %v", code, err)
	}
	return all
}

// text joins the texts of a stream.
func (s said) text(of kernel.OutputType) string {
	var text strings.Builder
	for _, o := range s.outputs {
		if o.Type == of {
			text.WriteString(o.Text)
		}
	}
	return text.String()
}

// data returns the content of a MIME type among the results or the displays.
func (s said) data(of kernel.OutputType, mimeType string) (content json.RawMessage, found bool) {
	for _, o := range s.outputs {
		if content, found = o.Data[mimeType]; found && o.Type == of {
			return content, true
		}
	}
	return nil, false
}

// process returns the id of the kernel's process.
func (s suite) process(t *testing.T, k kernel.Kernel) int {
	t.Helper()
	text := run(t, k, s.language.PrintProcess).text(kernel.OutputStdout)
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || pid < 2 {
		t.Fatalf("the kernel's process id: %q", text)
	}
	return pid
}

// awaitEnd waits until the process has ended. A zombie has: its parent is not ours to teach.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	wait.Until(t, "the process of the kernel has ended", func() bool { return !runs(pid) })
}

func runs(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The state follows the name, which is in parentheses and may have some itself.
	after := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
	return !strings.HasPrefix(after, " Z")
}
