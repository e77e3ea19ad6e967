package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
)

const (
	// defaultWait and maxWait bound commands and waits, in seconds.
	defaultWait = 120
	maxWait     = 3600
	// defaultTail is how many lines of a sandbox's own log are read.
	defaultTail = 200
	// urlLife is how long the URL of a port is good at most.
	urlLife = time.Hour
	// maxImages bounds the images of one answer, and maxImageBytes their size together.
	maxImages     = 4
	maxImageBytes = 4 << 20
)

// addWork adds the tools for what runs in sandboxes.
func (t *tools) addWork(server *mcp.Server) {
	add(server, &mcp.Tool{Name: "run_command",
		Description: "Run a shell command and wait for its end, or with background return at once.",
		Annotations: changes("Run a command", true, false, true)}, t.runCommand)
	add(server, &mcp.Tool{Name: "run_code",
		Description: "Run a cell in a Jupyter kernel, if the image has one. Shows images, too.",
		Annotations: changes("Run code", true, false, true)}, t.runCode)
	add(server, &mcp.Tool{Name: "read_logs",
		Description: "Read output: of a command by its id, or else of the sandbox's own program.",
		Annotations: readOnly("Read logs")}, t.readLogs)
	add(server, &mcp.Tool{Name: "wait_for_port",
		Description: "Wait until a server in the sandbox listens, and return a URL without a key.",
		Annotations: changes("Wait for a port", false, true, false)}, t.waitForPort)
}

type commandInput struct {
	boxInput
	Command    string            `json:"command"`
	Cwd        string            `json:"cwd,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Timeout    int               `json:"timeout_seconds,omitempty" jsonschema:"default 120, max 3600"`
	Background bool              `json:"background,omitempty" jsonschema:"for servers"`
}

func (t *tools) runCommand(ctx context.Context, request call,
	in commandInput) (content, error) {
	timeout, err := waitOf(in.Timeout)
	if err != nil {
		return nil, err
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	options := &sandbox.RunOptions{Cwd: in.Cwd, Envs: in.Env, Timeout: timeout}
	if in.Background {
		if in.Timeout == 0 {
			options.Timeout = 0
		}
		command, err := box.Commands.Start(ctx, in.Command, options)
		if err != nil {
			return nil, err
		}
		return text("command: %s\nread_logs shows its output.", command.ID), nil
	}
	output := &excerpt{}
	progress := newProgress(ctx, request)
	defer progress.stop()
	collect := func(p []byte) {
		output.add(p)
		progress.output(p)
	}
	options.OnStdout, options.OnStderr, options.MaxOutput = collect, collect, 1
	result, err := box.Commands.Run(ctx, in.Command, options)
	if err != nil {
		return nil, err
	}
	how := fmt.Sprintf("exit code: %v", value(result.ExitCode))
	if result.TimedOut() {
		how = fmt.Sprintf("ended by its timeout of %v", timeout)
	}
	shown := output.text(func(line int64) string {
		return fmt.Sprintf("read_logs with command and cursor %d reads on from there", line)
	})
	return text("%s\ncommand: %s, %v\n%s", how, result.ID, result.Duration, shown), nil
}

// waitOf checks a number of seconds.
func waitOf(seconds int) (time.Duration, error) {
	if seconds == 0 {
		seconds = defaultWait
	}
	if seconds < 1 || seconds > maxWait {
		return 0, fmt.Errorf("timeout_seconds must be 1 to %d, not %d", maxWait, seconds)
	}
	return time.Duration(seconds) * time.Second, nil
}

func value(code *int) any {
	if code == nil {
		return "none"
	}
	return *code
}

type codeInput struct {
	boxInput
	Code     string `json:"code"`
	Language string `json:"language,omitempty" jsonschema:"default python"`
	Context  string `json:"context,omitempty" jsonschema:"id, or 'new'; else one that all calls share"`
	Timeout  int    `json:"timeout_seconds,omitempty"`
}

func (t *tools) runCode(ctx context.Context, request call,
	in codeInput) (content, error) {
	timeout, err := waitOf(in.Timeout)
	if err != nil {
		return nil, err
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if in.Language == "" {
		in.Language = "python"
	}
	made := in.Context == "new"
	if made {
		kernel, err := box.Code.CreateContext(ctx, in.Language)
		if err != nil {
			return nil, err
		}
		in.Context = kernel.ID
	}
	progress := newProgress(ctx, request)
	defer progress.stop()
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	output := &excerpt{}
	collect := func(p []byte) {
		output.add(p)
		progress.output(p)
	}
	shown := &results{output: output, reserved: reservationOf(ctx)}
	ran, err := box.Code.Run(timed, in.Code, &sandbox.CodeOptions{
		Language: in.Language, Context: in.Context,
		OnStdout: collect, OnStderr: collect, OnResult: shown.add, MaxOutput: 1,
	})
	if err != nil && ctx.Err() == nil && timed.Err() != nil {
		err = fmt.Errorf("the cell was interrupted after %v. It had printed:\n%s", timeout,
			output.text(noRest))
	}
	switch {
	case err != nil && made: // the agent can go on with it
		return nil, fmt.Errorf("context: %s\n%w", in.Context, err)
	case err != nil:
		return nil, err
	}
	words := shown.end(ran.Error)
	if in.Context != "" {
		words = "context: " + in.Context + "\n" + words
	}
	return append(content{&mcp.TextContent{Text: words}}, shown.images...), nil
}

// results are what a cell shows: its images, and everything else in the output.
type results struct {
	output   *excerpt
	reserved *reservation
	images   content
	size     int // of the images
}

// add shows one more.
func (r *results) add(result sandbox.CodeResult) {
	image := &mcp.ImageContent{Data: result.PNG(), MIMEType: "image/png"}
	if image.Data == nil {
		image = &mcp.ImageContent{Data: result.JPEG(), MIMEType: "image/jpeg"}
	}
	switch n := len(image.Data); {
	case n == 0:
		words := cmp.Or(result.Text(), result.Markdown(), result.HTML(), result.SVG())
		r.output.add([]byte(strings.TrimSuffix(words, "\n") + "\n"))
	case len(r.images) == maxImages || r.size+n > maxImageBytes || !r.reserved.tryAcquire(int64(n)):
		r.output.add(fmt.Appendf(nil,
			"[an image of %d bytes is left out; save it to a file and read_file it]\n", n))
	default:
		r.size += n
		r.images = append(r.images, image)
	}
}

// end is everything but the images, once the cell has ended.
func (r *results) end(failure *sandbox.CodeError) string {
	if failure == nil {
		return "ended well\n" + r.output.text(noRest)
	}
	words := failure.Name + ": " + failure.Value
	if len(failure.Traceback) > 0 {
		words = strings.Join(failure.Traceback, "\n")
	}
	r.output.add([]byte(escapes.ReplaceAllString(words, "") + "\n"))
	return "failed\n" + r.output.text(noRest)
}

// escapes are the colours of tracebacks.
var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

func noRest(int64) string { return "print less, or write it to a file and read_file that" }

type logsInput struct {
	boxInput
	Command string `json:"command,omitempty" jsonschema:"id"`
	Cursor  *int64 `json:"cursor,omitempty" jsonschema:"of a command: only lines after this one"`
	Tail    int    `json:"tail,omitempty" jsonschema:"of the sandbox: last lines; default 200"`
}

func (t *tools) readLogs(ctx context.Context, _ call,
	in logsInput) (content, error) {
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if in.Command == "" {
		return boxLogs(ctx, box, in.Tail)
	}
	command, err := box.Commands.Connect(ctx, in.Command)
	if err != nil {
		return nil, err
	}
	cursor := int64(-1)
	if in.Cursor != nil {
		cursor = *in.Cursor
	}
	status, err := command.Status(ctx) // before the log, so that an ended command has no more
	if err != nil {
		return nil, err
	}
	stream, end, err := command.OpenLogs(ctx, cursor)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	log, err := io.ReadAll(io.LimitReader(stream, maxText+1))
	if err != nil {
		return nil, err
	}
	state := "running: true"
	if !status.Running {
		state = fmt.Sprintf("running: false, exit code: %v", value(status.ExitCode))
	}
	if len(log) > maxText {
		part := cutLines(string(log))
		next := cursor + int64(strings.Count(part, "\n"))
		return text("%s\n%s\n[cut; cursor %d reads on]", state, part, next), nil
	}
	missing := ""
	if end.Dropped > 0 {
		missing = fmt.Sprintf(", missing after this: %d bytes, which were not stored", end.Dropped)
	}
	return text("%s, cursor: %d%s\n%s", state, end.Cursor, missing, log), nil
}

// boxLogs is the end of what the sandbox's own program printed.
func boxLogs(ctx context.Context, box *sandbox.Sandbox, tail int) (content, error) {
	if tail <= 0 {
		tail = defaultTail
	}
	log, err := box.OpenLogs(ctx, &sandbox.LogOptions{Tail: &tail})
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	output := &excerpt{}
	if _, err := io.Copy(output, log); err != nil {
		return nil, err
	}
	shown := output.text(func(int64) string { return "a smaller tail shows the last lines whole" })
	return text("%s", shown), nil
}

type portInput struct {
	boxInput
	Port    int `json:"port"`
	Timeout int `json:"timeout_seconds,omitempty"`
}

func (t *tools) waitForPort(ctx context.Context, _ call,
	in portInput) (content, error) {
	timeout, err := waitOf(in.Timeout)
	if err != nil {
		return nil, err
	}
	if in.Port < 1 || in.Port > 65535 {
		return nil, fmt.Errorf("port must be 1 to 65535, not %d", in.Port)
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := box.WaitForPort(timed, in.Port); err != nil {
		if ctx.Err() == nil && timed.Err() != nil {
			return nil, fmt.Errorf("no process listens on port %d after %v", in.Port, timeout)
		}
		return nil, err
	}
	life := min(urlLife, time.Until(box.Info().ExpiresAt)-time.Second)
	endpoint, err := box.SignedEndpoint(ctx, in.Port, life)
	if errors.Is(err, sandbox.ErrBadRequest) || errors.Is(err, sandbox.ErrConflict) ||
		errors.Is(err, sandbox.ErrUnavailable) {
		// A service without a signing key has no such URLs.
		return text("url: %s/\nIt needs the header %s: %v", box.ProxyURL(in.Port), sandbox.KeyHeader,
			err), nil
	}
	if err != nil {
		return nil, err
	}
	return text("url: %s\ngood for: %v", endpoint.URL, life.Round(time.Second)), nil
}
