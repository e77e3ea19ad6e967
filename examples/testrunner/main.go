// The test runner runs the tests of a Python project in many sandboxes at the same time. Each
// sandbox has the project for itself and takes the next test when it has finished one.
//
//	go run ./examples/testrunner [-sandboxes 20] [-image IMAGE] [FOLDER]
//
// FOLDER is a project whose tests `python3 -m unittest` finds; without one it is a small one of
// this example. The exit code is 1 when a test fails, and 2 when the tests could not be run.
package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sync/errgroup"

	sandbox "sandbox.internal/clients/go"
)

const (
	home     = "/srv/project" // the directory of the project in each sandbox
	testTime = 2 * time.Minute
)

var (
	//go:embed project
	sample embed.FS
	//go:embed list_tests.py
	listTests string
)

func main() {
	log.SetFlags(0)
	sandboxes := flag.Int("sandboxes", 20, "how many sandboxes work at the same time")
	image := flag.String("image", "sandbox/base:dev", "image with Python 3")
	flag.Parse()
	project, err := fs.Sub(sample, "project")
	if directory := flag.Arg(0); directory != "" {
		project = os.DirFS(directory)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	failed := 0
	if err == nil {
		failed, err = run(ctx, os.Stdout, *image, *sandboxes, project)
	}
	switch {
	case err != nil:
		log.Print(err)
		os.Exit(2)
	case failed > 0:
		os.Exit(1)
	}
}

// runner is what the sandboxes have in common.
type runner struct {
	client  *sandbox.Client
	image   string
	project []sandbox.FileContent
	names   chan string // the tests that no sandbox has taken yet
	reports chan report
}

// report is how a test ended.
type report struct {
	name   string
	result sandbox.Result
}

// run runs all tests, prints how each ended as soon as it has, and returns how many failed.
func run(ctx context.Context, out io.Writer, image string, sandboxes int, project fs.FS) (failed int,
	err error) {
	files, err := read(project)
	if err != nil {
		return 0, err
	}
	client, err := sandbox.New(nil)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	r := &runner{client: client, image: image, project: files, names: make(chan string),
		reports: make(chan report)}
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for i := range max(1, sandboxes) {
		group.Go(func() error { return r.work(ctx, group, i == 0) })
	}
	go func() {
		err = group.Wait()
		close(r.reports)
	}()
	tests := 0
	for report := range r.reports {
		tests++
		verdict := "ok  "
		if report.result.Err() != nil {
			failed++
			verdict = "FAIL"
		}
		fmt.Fprintf(out, "%s %6.2fs  %s\n", verdict, report.result.Duration.Seconds(),
			printable(report.name))
		if report.result.Err() != nil {
			fmt.Fprintf(out, "%s\n%v\n", printable(report.result.Stderr), report.result.Err())
		}
	}
	if err == nil {
		fmt.Fprintf(out, "%d tests in %d sandboxes, %d failed, %.1f s\n", tests, sandboxes, failed,
			time.Since(began).Seconds())
	}
	return failed, err
}

// work runs tests in a sandbox of its own until none is left. One of the sandboxes lists them, too.
func (r *runner) work(ctx context.Context, group *errgroup.Group, lists bool) error {
	box, err := r.client.Create(ctx, &sandbox.CreateOptions{Image: r.image, CPU: "1", Memory: "256Mi",
		Metadata: map[string]string{"name": "testrunner"}})
	if box != nil {
		defer func() { _ = box.Delete(context.WithoutCancel(ctx)) }()
	}
	if err != nil {
		return err
	}
	if err := box.Files.WriteAll(ctx, r.project...); err != nil {
		return err
	}
	if lists {
		names, err := r.list(ctx, box)
		if err != nil {
			return err
		}
		group.Go(func() error { return r.hand(ctx, names) })
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case name, more := <-r.names:
			if !more {
				return nil
			}
			result, err := box.Commands.Run(ctx, `python3 -m unittest "$TEST"`, &sandbox.RunOptions{
				Cwd: home, Envs: map[string]string{"TEST": name}, Timeout: testTime})
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			r.reports <- report{name, result}
		}
	}
}

// list returns the names of the project's tests.
func (r *runner) list(ctx context.Context, box *sandbox.Sandbox) ([]string, error) {
	result, err := box.Commands.Run(ctx, `python3 -c "$LIST"`, &sandbox.RunOptions{
		Cwd: home, Envs: map[string]string{"LIST": listTests}, Timeout: testTime})
	if err != nil {
		return nil, err
	}
	if err := result.Err(); err != nil {
		return nil, fmt.Errorf("list the tests: %w\n%s", err, printable(result.Stderr))
	}
	return strings.Fields(result.Stdout), nil
}

// hand hands out the names.
func (r *runner) hand(ctx context.Context, names []string) error {
	defer close(r.names)
	for _, name := range names {
		select {
		case r.names <- name:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// read returns the files of a project, with the paths that they get in the sandboxes.
func read(project fs.FS) (files []sandbox.FileContent, err error) {
	err = fs.WalkDir(project, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := fs.ReadFile(project, name)
		files = append(files, sandbox.FileContent{Path: path.Join(home, name), Data: data})
		return err
	})
	return files, err
}

// printable replaces what could control the terminal: what runs in a sandbox chooses its output.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, strings.TrimSpace(text))
}
