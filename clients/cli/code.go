package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
)

// maxSource bounds the source of a cell, in bytes.
const maxSource = 16 << 20

// codeFlags are the flags of a cell.
type codeFlags struct {
	language  string
	context   string
	source    string
	directory string
	fresh     bool

	stateless bool
}

func codeCommand(t *tool) *cobra.Command {
	f := &codeFlags{}
	command := &cobra.Command{
		Use:   "code [flags] SANDBOX [FILE|-]",
		Short: "Run code in a kernel of a sandbox and show its results",
		Long: "Run code in a kernel of a sandbox and show its results: text is printed, images\n" +
			"are saved. The code is in --code, a FILE, or the standard input. The exit code\n" +
			"is 1 when it raises. Calls share the variables of the language's default\n" +
			"context; --in names another, which --new-context makes, and --stateless uses\n" +
			"none.",
		Example: "  sandbox code notebook -c '6 * 7'\n" +
			"  echo 'print(6 * 7)' | sandbox code notebook -l python -",
		Args:              arguments(1, 2, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			if f.stateless && (f.context != "" || f.fresh) {
				return usageErrorf("stateless: must not be given with --in or --new-context")
			}
			if f.fresh && (f.context != "" || f.source != "" || len(args) > 1) {
				return usageErrorf("new-context: does not go with code or --in")
			}
			source := ""
			if !f.fresh {
				var err error
				if source, err = t.sourceOf(f.source, args[1:]); err != nil {
					return err
				}
			}
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			if f.fresh {
				created, err := box.Code.CreateContext(c.Context(), f.language)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(t.Stdout, t.Clean(created.ID))
				return err
			}
			return t.runCode(c.Context(), box, source, f)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&f.language, "language", "l", "python",
		"`LANGUAGE`: python, java, javascript, typescript, go or bash")
	flags.StringVar(&f.context, "in", "", "run in the context with this `ID`")
	flags.BoolVar(&f.fresh, "new-context", false, "make a context and print its id")
	flags.BoolVar(&f.stateless, "stateless", false, "run in a kernel of its own, which is thrown away")
	flags.StringVarP(&f.source, "code", "c", "", "the `CODE` itself")
	flags.StringVar(&f.directory, "save", ".", "the `DIRECTORY` for images")
	t.registerOutput(command, "")
	return command
}

// sourceOf reads the code.
func (t *tool) sourceOf(given string, args []string) (string, error) {
	if given != "" {
		if len(args) > 0 {
			return "", usageErrorf("the code is given twice: --code and %q", args[0])
		}
		return given, nil
	}
	input := t.Stdin
	if len(args) > 0 && args[0] != stream {
		file, err := os.Open(args[0])
		if err != nil {
			return "", err
		}
		defer func() { _ = file.Close() }()
		input = file
	}
	text, err := io.ReadAll(io.LimitReader(input, maxSource+1))
	if err == nil && len(text) > maxSource {
		err = fmt.Errorf("the code must be at most %d bytes", maxSource)
	}
	return string(text), err
}

func (t *tool) runCode(ctx context.Context, box *sandbox.Sandbox, source string,
	f *codeFlags) error {
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	options := &sandbox.CodeOptions{Language: f.language, Context: f.context, Stateless: f.stateless}
	// The first interrupt ends the cell, which then says so itself. Further ones do not wait for
	// it.
	var interrupted atomic.Bool
	options.OnStart = func(id string) {
		t.signals.onInterrupt(func() {
			interrupted.Store(true)
			go func() {
				if err := box.Code.Interrupt(run, id); err != nil && run.Err() == nil {
					t.warn("interrupt the code: %v", err)
				}
			}()
		})
	}
	images := &imageSaver{t: t, directory: f.directory}
	var failed error
	if !t.Printer.Structured() {
		write := func(w io.Writer) func([]byte) {
			return func(data []byte) {
				if _, err := w.Write(data); err != nil && failed == nil {
					failed = err
					cancel(err)
				}
			}
		}
		options.OnStdout, options.OnStderr = write(t.Stdout), write(t.Stderr)
		options.OnResult = func(result sandbox.CodeResult) {
			if err := images.show(result); err != nil && failed == nil {
				failed = err
				cancel(err)
			}
		}
		options.MaxOutput = 1
	}
	execution, err := box.Code.Run(run, source, options)
	t.signals.onInterrupt(nil)
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return err
	case t.Printer.Structured():
		if err := t.ShowValue(cellOf(execution)); err != nil {
			return err
		}
	case execution.Error != nil:
		t.showTraceback(execution.Error)
	}
	switch {
	case execution.Error != nil && interrupted.Load():
		return exitError{ExitInterrupted}
	case execution.Error != nil:
		return exitError{ExitFailed}
	}
	return nil
}

// cell is what became of code, for programs.
type cell struct {
	ID         string               `json:"id"`
	Count      int                  `json:"execution_count"`
	DurationMs int64                `json:"duration_ms"`
	Stdout     string               `json:"stdout"`
	Stderr     string               `json:"stderr"`
	Truncated  bool                 `json:"truncated"` // there was more than is here
	Results    []sandbox.CodeResult `json:"results"`
	Error      *cellError           `json:"error,omitempty"`
	Reason     string               `json:"reason,omitempty"` // OOM_KILLED
}

// cellError is why code failed.
type cellError struct {
	Name      string   `json:"ename"`
	Value     string   `json:"evalue"`
	Traceback []string `json:"traceback"`
}

func cellOf(e sandbox.Execution) cell {
	c := cell{ID: e.ID, Count: e.Count, DurationMs: e.Duration.Milliseconds(), Stdout: e.Stdout,
		Stderr: e.Stderr, Truncated: e.Truncated, Results: e.Results, Reason: e.Reason}
	if c.Results == nil {
		c.Results = []sandbox.CodeResult{}
	}
	if e.Error != nil {
		c.Error = &cellError{e.Error.Name, e.Error.Value, e.Error.Traceback}
	}
	return c
}

// showTraceback prints why a cell failed, as its kernel says it: with colours, which are for
// terminals only.
func (t *tool) showTraceback(failure *sandbox.CodeError) {
	lines := failure.Traceback
	if len(lines) == 0 {
		lines = []string{failure.Name + ": " + failure.Value}
	}
	for _, line := range lines {
		if !isTerminal(t.Stderr) {
			line = withoutColours(line)
		}
		_, _ = fmt.Fprintln(t.Stderr, line)
	}
}

// withoutColours takes the sequences that choose colours out of a text.
func withoutColours(text string) string {
	var plain strings.Builder
	for {
		before, rest, found := strings.Cut(text, "\x1b[")
		plain.WriteString(before)
		if !found {
			return plain.String()
		}
		end := strings.IndexFunc(rest, func(r rune) bool { return r >= '@' && r <= '~' })
		if end < 0 {
			return plain.String()
		}
		text = rest[end+1:]
	}
}

// imageTypes are the images that are saved, and their extensions.
var imageTypes = []struct{ mime, extension string }{
	{"image/png", "png"}, {"image/jpeg", "jpg"}, {"image/svg+xml", "svg"},
}

// imageSaver shows results.
type imageSaver struct {
	t         *tool
	directory string
	number    int
}

// show prints the text of a result, and saves its image if it has one.
func (s *imageSaver) show(result sandbox.CodeResult) error {
	for _, image := range imageTypes {
		content := []byte(result.SVG())
		switch image.mime {
		case "image/png":
			content = result.PNG()
		case "image/jpeg":
			content = result.JPEG()
		}
		if len(content) == 0 {
			continue
		}
		name, err := s.save(content, image.extension)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(s.t.Stdout, "saved %s\n", s.t.Clean(name))
		return err
	}
	text := result.Text()
	for _, other := range []string{result.Markdown(), result.HTML()} {
		if text == "" {
			text = other
		}
	}
	if text == "" {
		return nil
	}
	_, err := io.Copy(s.t.Stdout, bytes.NewReader([]byte(strings.TrimSuffix(text, "\n")+"\n")))
	return err
}

// save writes an image under a name that is not taken.
func (s *imageSaver) save(content []byte, extension string) (string, error) {
	for {
		s.number++
		name := filepath.Join(s.directory, fmt.Sprintf("result-%d.%s", s.number, extension))
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		_, err = file.Write(content)
		return name, errors.Join(err, file.Close())
	}
}
