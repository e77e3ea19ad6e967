// Command bench measures the programs in bin/ from outside, over HTTP, as their users would, and sets every figure
// against a floor: the same work done by the least that could do it, on the same machine, in the same run, in turns.
// An absolute figure says as much about the machine as about the program; a ratio to such a floor says how much of the
// cost is ours.
//
//	go run ./bench                    measure every row and write docs/benchmarks/
//	go run ./bench --only command     measure only rows whose name begins with a word of the list; write nothing
//	go run ./bench --quick            fewer rounds and less data; write nothing
//	go run ./bench floor ADDRESS DIR  be the floor server (started by the bench itself)
//	go run ./bench forward ADDRESS TO be a bare reverse proxy (started by the bench itself)
//
// The exit code is 0 when every row could be measured, whether or not it met its target: this is a measurement, not a
// test. It is 1 when a row could not be measured or data was lost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
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
	if len(args) == 3 && args[0] == "floor" {
		return serveFloor(ctx, args[1], args[2])
	}
	if len(args) == 3 && args[0] == "forward" {
		return serveForward(ctx, args[1], args[2])
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := flags.String("only", "", "comma-separated `names`; a row is measured when its name begins with one of them")
	quick := flags.Bool("quick", false, "fewer rounds and less data, for a first look")
	bin := flags.String("bin", "bin", "`folder` of the programs to measure")
	out := flags.String("out", "docs/benchmarks", "`folder` for latest.json and latest.md; empty writes nothing. Partial and quick runs never write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	b, err := newBench(*bin, *quick, strings.FieldsFunc(*only, func(r rune) bool { return r == ',' }))
	if err != nil {
		return err
	}
	defer b.close()
	began := time.Now()
	failures := b.measure(ctx)
	report := b.report(time.Since(began))
	fmt.Print(report.table())
	if len(failures) > 0 {
		return errors.Join(failures...)
	}
	if *out == "" || *quick || *only != "" {
		return nil
	}
	return report.write(*out)
}
