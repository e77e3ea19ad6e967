// Command bench measures the programs in bin/ from outside, over HTTP, as their users would, and
// sets every figure against a floor: the same work done by the least that could do it, on the same
// machine, in the same run, in turns. An absolute figure says as much about the machine as about
// the program; a ratio to such a floor says how much of the cost is ours.
//
//	go run ./bench                    measure every row and write docs/benchmarks/
//	go run ./bench --only command     measure only rows whose name begins with a word of the list; write nothing
//	go run ./bench --quick            fewer rounds and less data; write nothing
//	go run ./bench --gate             measure the rows of bench/baselines.json, briefly; fail when one is worse than recorded there three times
//	go run ./bench kernel DIR         be the floor of cells (started by the bench itself)
//
//	go run ./bench --baseline 10      measure those rows ten times and write bench/baselines.json
//
// The exit code is 0 when every row could be measured, whether or not it met its target: this is a
// measurement, not a test. It is 1 when a row could not be measured or data was lost, and when a
// row of the gate has become worse.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sandbox.internal/bench/inside"
	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		}
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == "kernel" {
		return inside.WorkAsKernel(ctx, args[1], os.Stdin, os.Stdout)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := flags.String("only", "",
		"comma-separated `names`; a row is measured when its name begins with one of them")
	quick := flags.Bool("quick", false, "fewer rounds and less data, for a first look")
	gated := flags.Bool("gate", false,
		"measure the rows that have a baseline, and fail when one has become worse")
	record := flags.Int("baseline", 0,
		"measure the rows of the gate `times`, on a quiet machine, and write the baselines")
	file := flags.String("baselines", filepath.Join("bench", "baselines.json"),
		"`file` of the baselines")
	bin := flags.String("bin", "bin", "`directory` of the programs to measure")
	out := flags.String("out", "docs/benchmarks",
		"`directory` for what a full run writes; empty writes nothing. Partial and quick runs never write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *record > 0 {
		return writeBaselines(ctx, *bin, *file, *record)
	}
	if *gated {
		against, err := readBaselines(*file)
		if err != nil {
			return err
		}
		return gate(ctx, *bin, against)
	}
	size := measure.ScaleFull
	names, err := beginning(strings.FieldsFunc(*only, func(r rune) bool { return r == ',' }))
	if err != nil {
		return err
	}
	if *quick {
		size = measure.ScaleQuick
	}
	b, err := measure.NewRun(*bin, size, names)
	if err != nil {
		return err
	}
	defer b.Close()
	var during report.Load
	if during.Before, err = report.BusyShare(ctx); err != nil {
		return err
	}
	began := time.Now()
	results, failures := b.Measure(ctx, groups())
	took := time.Since(began)
	if during.After, err = report.BusyShare(ctx); err != nil {
		return err
	}
	report := report.New(results, took, during)
	fmt.Print(report.Table())
	if len(failures) > 0 {
		return errors.Join(failures...)
	}
	if *out == "" || size != measure.ScaleFull || *only != "" {
		return nil
	}
	return report.Write(*out)
}
