package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

// usage is what one sandbox uses at one moment.
type usage struct {
	ID      string          `json:"id"`
	Name    string          `json:"name,omitempty"`
	Metrics sandbox.Metrics `json:"metrics"`
}

func (u usage) memoryPercent() float64 {
	if u.Metrics.MemTotalMib <= 0 {
		return 0
	}
	return 100 * u.Metrics.MemUsedMib / u.Metrics.MemTotalMib
}

var usageView = show.View[usage]{
	ID: func(u usage) string { return u.ID },
	Name: func(u usage) string {
		if u.Name != "" {
			return u.Name
		}
		return u.ID
	},
	Columns: []show.Column[usage]{
		{Title: "ID", Usual: 8, Value: func(u usage) string { return shortID(u.ID) }},
		{Title: "NAME", Usual: 16, Value: func(u usage) string { return u.Name }, Least: 8},
		{Title: "CPU", Usual: 6, Value: func(u usage) string {
			return fmt.Sprintf("%.1f%%", u.Metrics.CPUUsedPct)
		}},
		{Title: "CORES", Usual: 5, Value: func(u usage) string {
			return fmt.Sprintf("%.3g", u.Metrics.CPUCount)
		}},
		{Title: "MEMORY", Usual: 21, Value: func(u usage) string {
			return fmt.Sprintf("%s / %s", mebibytes(u.Metrics.MemUsedMib), mebibytes(u.Metrics.MemTotalMib))
		}},
		{Title: "MEM", Usual: 6, Value: func(u usage) string {
			return fmt.Sprintf("%.1f%%", u.memoryPercent())
		}},
	},
}

func mebibytes(n float64) string { return bytesOf(int64(n * (1 << 20))) }

func statsCommand(t *tool) *cobra.Command {
	var watch bool
	command := &cobra.Command{
		Use:               "stats [flags] SANDBOX...",
		Short:             "Show the processor time and memory that sandboxes use",
		Example:           "  sandbox stats box\n  sandbox stats -w box",
		Args:              arguments(1, -1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(-1),
		RunE: func(c *cobra.Command, args []string) error {
			ctx := c.Context()
			boxes, err := t.findAll(ctx, args)
			if err != nil {
				return err
			}
			if !watch {
				list, err := snapshots(ctx, boxes)
				return errors.Join(show.All(t.Printer, usageView, list), err)
			}
			printed := show.NewRows(t.Printer, usageView)
			return watchUsage(ctx, boxes, printed.Print)
		},
	}
	command.Flags().BoolVarP(&watch, "watch", "w", false, "go on every second, until an interrupt")
	t.registerOutput(command, "ids")
	return command
}

// snapshots asks all sandboxes at once. Those that do not answer are in the error.
func snapshots(ctx context.Context, boxes []*sandbox.Sandbox) ([]usage, error) {
	list := make([]usage, len(boxes))
	failures := make([]error, len(boxes))
	var done sync.WaitGroup
	for i, box := range boxes {
		done.Go(func() {
			metrics, err := box.Metrics(ctx)
			if err != nil {
				failures[i] = fmt.Errorf("%s: %w", label(box.Info()), err)
				return
			}
			list[i] = usage{box.ID(), nameOf(box.Info()), metrics}
		})
	}
	done.Wait()
	list = slices.DeleteFunc(list, func(u usage) bool { return u.ID == "" })
	return list, errors.Join(failures...)
}

// watchUsage calls each with every new snapshot of the sandboxes, one call at a time, until ctx
// ends or all streams have failed.
func watchUsage(ctx context.Context, boxes []*sandbox.Sandbox, each func(usage) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex
	failures := make([]error, len(boxes))
	var done sync.WaitGroup
	for i, box := range boxes {
		done.Go(func() {
			for metrics, err := range box.WatchMetrics(ctx) {
				if err != nil {
					failures[i] = fmt.Errorf("%s: %w", label(box.Info()), err)
					return
				}
				mu.Lock()
				err = each(usage{box.ID(), nameOf(box.Info()), metrics})
				mu.Unlock()
				if err != nil {
					stop(err)
					return
				}
			}
		})
	}
	done.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.Join(failures...)
}

func topCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "top [flags]",
		Short: "Show what all running sandboxes use, the busiest first",
		Long: "Show what all running sandboxes use, the busiest first: on a terminal again\n" +
			"every second until an interrupt, elsewhere once.",
		Example: "  sandbox top",
		Args:    arguments(0, 0, ""),
		RunE:    func(c *cobra.Command, _ []string) error { return t.top(c.Context()) },
	}
	t.registerOutput(command, "ids")
	return command
}

func (t *tool) top(ctx context.Context) error {
	if isTerminal(t.Stdout) && t.Printer.Format == show.FormatTable && !t.Printer.Quiet {
		return newScreen(t).run(ctx)
	}
	boxes, err := t.running(ctx)
	if err != nil {
		return err
	}
	list, err := snapshots(ctx, boxes)
	sortUsage(list)
	return errors.Join(show.All(t.Printer, usageView, list), err)
}

func (t *tool) running(ctx context.Context) ([]*sandbox.Sandbox, error) {
	c, err := t.connect()
	if err != nil {
		return nil, err
	}
	var boxes []*sandbox.Sandbox
	for info, err := range c.client.List(ctx, &sandbox.ListOptions{States: []string{sandbox.Running}}) {
		if err != nil {
			return nil, err
		}
		box, err := c.client.Connect(ctx, info.ID)
		if errors.Is(err, sandbox.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, box)
	}
	return boxes, nil
}

func sortUsage(list []usage) {
	slices.SortFunc(list, func(a, b usage) int {
		switch {
		case a.Metrics.CPUUsedPct*a.Metrics.CPUCount > b.Metrics.CPUUsedPct*b.Metrics.CPUCount:
			return -1
		case a.Metrics.CPUUsedPct*a.Metrics.CPUCount < b.Metrics.CPUUsedPct*b.Metrics.CPUCount:
			return 1
		}
		return strings.Compare(a.ID, b.ID)
	})
}

// redrawEvery is how often the screen of top changes.
const redrawEvery = time.Second
