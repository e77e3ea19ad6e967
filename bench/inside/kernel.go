package inside

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/bench/job"
	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/runtime/kernel"
)

// startKernel starts the floor of cells: this program again, which uses a Python kernel directly.
func startKernel(dir string) (rig.Worker, error) {
	self, err := os.Executable()
	if err != nil {
		return rig.Worker{}, err
	}
	started, err := job.Start(exec.Command(self, "kernel", dir))
	return rig.Worker{Worker: started}, err
}

// forever prints, and then runs until it is interrupted.
const forever = "print('x', flush=True)\nwhile True: pass"

// WorkAsKernel does the jobs cell, interrupt and fresh.
func WorkAsKernel(ctx context.Context, dir string, in io.Reader, out io.Writer) error {
	host := jupyter.NewDirect(jupyter.DirectOptions{Env: os.Environ(), TempDir: dir,
		Logger: zerolog.Nop()})
	defer host.Close()
	launch := func() (kernel.Kernel,
		error) {
		return host.Start(ctx, "python3", kernel.StartOptions{Dir: dir})
	}
	bare, err := launch()
	if err != nil {
		return fmt.Errorf("a Python kernel (scripts/kernels.sh installs it): %w", err)
	}
	cell := func(k kernel.Kernel) error {
		_, err := k.Execute(ctx, "1+1", func(kernel.Output) {})
		return err
	}
	return job.Serve(in, out, map[string]job.Job{
		"cell": func([]string) ([]float64, error) {
			began := time.Now()
			err := cell(bare)
			return []float64{measure.Elapsed(began)}, err
		},
		// A kernel of its own for the cell, which is thrown away afterwards.
		"fresh": func([]string) ([]float64, error) {
			began := time.Now()
			fresh, err := launch()
			if err != nil {
				return nil, err
			}
			err = cell(fresh)
			took := measure.Elapsed(began)
			if err != nil {
				return nil, err
			}
			return []float64{took}, fresh.Stop(ctx)
		},
		// From the interrupt of a cell that runs until the next one has ended.
		"interrupt": func([]string) ([]float64, error) {
			running, ended := make(chan struct{}), make(chan error, 1)
			// a kernel may send one line in two pieces
			begun := sync.OnceFunc(func() { close(running) })
			go func() {
				_, err := bare.Execute(ctx, forever, func(o kernel.Output) {
					if o.Type == kernel.OutputStdout && o.Text != "\n" {
						begun()
					}
				})
				ended <- err
			}()
			select {
			case <-running:
			case err := <-ended:
				return nil, fmt.Errorf("the cell that runs until it is interrupted has ended: %w",
					err)
			}
			began := time.Now()
			if _, err := bare.Interrupt(ctx); err != nil {
				return nil, err
			}
			if err := <-ended; err != nil {
				return nil, err
			}
			err := cell(bare)
			return []float64{measure.Elapsed(began)}, err
		},
	})
}
