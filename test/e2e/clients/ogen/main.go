// Command ogen takes a sandbox through its life with clients that ogen generated from the two
// contracts. It is run by a test in e2e, which generates the packages lifecycle and execd beside it
// first:
//
//	SANDBOX_URL=http://127.0.0.1:8080 SERVICE_API_KEY=... ogen IMAGE
//
// It ends with exit code 1 and one line that says what was not as the contract says.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-faster/jx"

	"sandbox.internal/test/e2e/clients/ogen/execd"
	"sandbox.internal/test/e2e/clients/ogen/lifecycle"
)

// limit finds a hang; nothing here is a measure of speed.
const limit = 5 * time.Minute

func main() {
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	if err := run(ctx, os.Getenv("SANDBOX_URL"), os.Getenv("SERVICE_API_KEY"), os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "ogen: %v\n", err)
		os.Exit(1)
	}
}

// serviceKey is how the generated client asks for the key.
type serviceKey string

func (k serviceKey) ApiKey(context.Context, lifecycle.OperationName) (lifecycle.ApiKey, error) {
	return lifecycle.ApiKey{APIKey: string(k)}, nil
}

type sandboxToken string

func (k sandboxToken) AccessToken(context.Context, execd.OperationName) (execd.AccessToken, error) {
	return execd.AccessToken{APIKey: string(k)}, nil
}

func run(ctx context.Context, url, key, image string) (err error) {
	service, err := lifecycle.NewClient(url, serviceKey(key))
	if err != nil {
		return err
	}
	health, err := as[*lifecycle.HealthHeaders](service.GetHealth(ctx))
	if err != nil || health.Response.Status != "healthy" || !health.XRequestID.Set {
		return fmt.Errorf("health: %+v, %w", health, err)
	}
	id, err := create(ctx, service, image)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer func() { err = errors.Join(err, remove(service, id)) }()
	if err := await(ctx, service, id, "Running"); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func(context.Context, *lifecycle.Client, string) error
	}{
		{"list", list}, {"inside", inside}, {"pause", pause}, {"renew", renew},
	} {
		if err := step.do(ctx, service, id); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println(step.name, "ok")
	}
	if err := refusals(ctx, service, url); err != nil {
		return fmt.Errorf("refusals: %w", err)
	}
	fmt.Println("refusals ok")
	return nil
}

// as is the answer as the type that is expected; any other type says what came instead.
func as[T any](answer any, err error) (T, error) {
	typed, ok := answer.(T)
	if err == nil && !ok {
		err = fmt.Errorf("got %T %+v instead of %T", answer, answer, typed)
	}
	return typed, err
}

func create(ctx context.Context, service *lifecycle.Client, image string) (string, error) {
	created, err := as[*lifecycle.CreatedSandboxHeaders](service.CreateSandbox(ctx, &lifecycle.CreateSandboxRequest{
		Image:          lifecycle.NewOptImage(lifecycle.Image{URI: image}),
		Timeout:        600,
		ResourceLimits: lifecycle.NewOptResourceLimits(lifecycle.ResourceLimits{Memory: lifecycle.NewOptString("256Mi")}),
		Entrypoint:     lifecycle.Entrypoint{"sleep", "1000"},
		Env:            lifecycle.NewOptEnv(lifecycle.Env{"GREETING": "hello"}),
		Metadata:       lifecycle.NewOptMetadata(lifecycle.Metadata{"client": "ogen"}),
		Extensions:     lifecycle.NewOptExtensions(lifecycle.Extensions{"example.number": jx.Raw("12345678901234567890")}),
	}, lifecycle.CreateSandboxParams{}))
	if err != nil {
		return "", err
	}
	id := created.Response.ID
	if created.Location != "/v1/sandboxes/"+id || created.Response.Status.State != "Pending" || created.Response.Metadata["client"] != "ogen" {
		return id, fmt.Errorf("answer %+v", created)
	}
	return id, nil
}

func await(ctx context.Context, service *lifecycle.Client, id string, state lifecycle.SandboxState) error {
	for {
		sandbox, err := as[*lifecycle.SandboxHeaders](service.GetSandbox(ctx, lifecycle.GetSandboxParams{SandboxId: id}))
		if err != nil {
			return err
		}
		status := sandbox.Response.Status
		if status.State == state {
			return nil
		}
		if status.State == "Failed" || status.State == "Terminated" {
			return fmt.Errorf("the sandbox is %s: %s", status.State, status.Message)
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
}

func list(ctx context.Context, service *lifecycle.Client, id string) error {
	page, err := as[*lifecycle.SandboxListHeaders](service.ListSandboxes(ctx, lifecycle.ListSandboxesParams{
		State:    []lifecycle.SandboxState{"Running", "Paused"},
		Metadata: lifecycle.NewOptString("client=ogen"),
	}))
	if err != nil {
		return err
	}
	if found := page.Response.Items; len(found) != 1 || found[0].ID != id || page.Response.Pagination.TotalItems != 1 {
		return fmt.Errorf("answer %+v", page.Response)
	}
	return nil
}

func pause(ctx context.Context, service *lifecycle.Client, id string) error {
	if _, err := as[*lifecycle.PauseSandboxAccepted](service.PauseSandbox(ctx, lifecycle.OptPauseSandboxRequest{}, lifecycle.PauseSandboxParams{SandboxId: id})); err != nil {
		return err
	}
	if err := await(ctx, service, id, "Paused"); err != nil {
		return err
	}
	if _, err := as[*lifecycle.ResumeSandboxAccepted](service.ResumeSandbox(ctx, lifecycle.ResumeSandboxParams{SandboxId: id})); err != nil {
		return err
	}
	return await(ctx, service, id, "Running")
}

func renew(ctx context.Context, service *lifecycle.Client, id string) error {
	later := time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second)
	params := lifecycle.RenewExpirationParams{SandboxId: id}
	renewed, err := as[*lifecycle.ExpirationHeaders](service.RenewExpiration(ctx, &lifecycle.RenewRequest{ExpiresAt: later}, params))
	if err != nil || !renewed.Response.ExpiresAt.Equal(later) {
		return fmt.Errorf("answer %+v: %w", renewed, err)
	}
	refused, err := as[*lifecycle.BadRequestHeaders](service.RenewExpiration(ctx, &lifecycle.RenewRequest{ExpiresAt: later.Add(-time.Hour)}, params))
	if err != nil || refused.Response.Code == "" || refused.Response.Detail != refused.Response.Message {
		return fmt.Errorf("an earlier time: %+v, %w", refused, err)
	}
	return nil
}

// remove ends the sandbox, whatever happened before.
func remove(service *lifecycle.Client, id string) error {
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	if _, err := as[*lifecycle.DeleteSandboxNoContent](service.DeleteSandbox(ctx, lifecycle.DeleteSandboxParams{SandboxId: id})); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return await(ctx, service, id, "Terminated")
}

func refusals(ctx context.Context, service *lifecycle.Client, url string) error {
	missing, err := as[*lifecycle.NotFoundHeaders](service.GetSandbox(ctx, lifecycle.GetSandboxParams{SandboxId: "no-such-sandbox"}))
	if err != nil || missing.Response.Code != "SANDBOX_NOT_FOUND" {
		return fmt.Errorf("an unknown id: %+v, %w", missing, err)
	}
	stranger, err := lifecycle.NewClient(url, serviceKey("wrong"))
	if err != nil {
		return err
	}
	refused, err := as[*lifecycle.UnauthorizedHeaders](stranger.ListSandboxes(ctx, lifecycle.ListSandboxesParams{}))
	if err != nil || refused.Response.Code != "UNAUTHORIZED" {
		return fmt.Errorf("a wrong key: %+v, %w", refused, err)
	}
	short, err := as[*lifecycle.BadRequestHeaders](service.CreateSandbox(ctx, &lifecycle.CreateSandboxRequest{
		Image: lifecycle.NewOptImage(lifecycle.Image{URI: "any"}), Timeout: 59, Entrypoint: lifecycle.Entrypoint{"true"},
	}, lifecycle.CreateSandboxParams{}))
	if err != nil || !strings.Contains(short.Response.Message, "timeout") {
		return fmt.Errorf("a timeout of 59 seconds: %+v, %w", short, err)
	}
	return nil
}

// inside uses the API of the sandbox's own daemon.
func inside(ctx context.Context, service *lifecycle.Client, id string) error {
	endpoint, err := as[*lifecycle.EndpointHeaders](service.GetEndpoint(ctx, lifecycle.GetEndpointParams{SandboxId: id, Port: 44772}))
	if err != nil {
		return err
	}
	url, token := endpoint.Response.URL, endpoint.Response.Headers["X-EXECD-ACCESS-TOKEN"]
	daemon, err := execd.NewClient(url, sandboxToken(token))
	if err != nil {
		return err
	}
	if _, err := daemon.Ping(ctx, execd.PingParams{}); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	if err := commands(ctx, daemon); err != nil {
		return err
	}
	if err := files(ctx, daemon, url, token); err != nil {
		return err
	}
	metrics, err := as[*execd.Metrics](daemon.GetMetrics(ctx, execd.GetMetricsParams{}))
	if err != nil || metrics.MemTotalMib != 256 {
		return fmt.Errorf("metrics: %+v, %w", metrics, err)
	}
	stranger, err := execd.NewClient(url, sandboxToken("wrong"))
	if err != nil {
		return err
	}
	refused, err := as[*execd.GetMetricsUnauthorized](stranger.GetMetrics(ctx, execd.GetMetricsParams{}))
	if err != nil || refused.Code != "UNAUTHORIZED" {
		return fmt.Errorf("a wrong token: %+v, %w", refused, err)
	}
	return nil
}

// event is written by hand: ogen makes types of what an operation refers to, and the contract's
// language has no way to say what the events of a stream are.
type event struct {
	Type     string
	Text     string
	ExitCode int `json:"exit_code"`
	Error    struct{ Ename string }
}

// read reads a stream that has ended: the generated client has waited for that.
func read(stream io.Reader) ([]event, error) {
	var events []event
	for lines := bufio.NewScanner(stream); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var next event
			if err := json.Unmarshal([]byte(data), &next); err != nil {
				return nil, fmt.Errorf("event %s: %w", data, err)
			}
			events = append(events, next)
		}
	}
	return events, nil
}

func commands(ctx context.Context, daemon *execd.Client) error {
	answer, err := as[*execd.RunCommandOKTextEventStreamHeaders](daemon.RunCommand(ctx, &execd.CommandRequest{Command: "echo $GREETING; exit 7"}, execd.RunCommandParams{}))
	if err != nil {
		return err
	}
	events, err := read(answer.Response)
	if err != nil {
		return err
	}
	var out string
	for _, event := range events {
		if event.Type == "stdout" {
			out += event.Text
		}
	}
	command := answer.XCommandID
	if len(events) < 3 || events[0].Text != string(command) || out != "hello" {
		return fmt.Errorf("command %s: events %+v", command, events)
	}
	last := events[len(events)-1]
	if last.Type != "error" || last.ExitCode != 7 || last.Error.Ename != "CommandExecError" {
		return fmt.Errorf("the last event is %+v", last)
	}
	status, err := as[*execd.CommandStatus](daemon.GetCommandStatus(ctx, execd.GetCommandStatusParams{ID: command}))
	if err != nil || status.Running || status.ExitCode.Value != 7 {
		return fmt.Errorf("status: %+v, %w", status, err)
	}
	logs, err := as[*execd.GetCommandLogsOKHeaders](daemon.GetCommandLogs(ctx, execd.GetCommandLogsParams{ID: command}))
	if err != nil {
		return err
	}
	if text, err := io.ReadAll(logs.Response); err != nil || string(text) != "hello\n" {
		return fmt.Errorf("logs: %q, %w", text, err)
	}
	return nil
}

func files(ctx context.Context, daemon *execd.Client, url, token string) error {
	const path = "/tmp/ogen/a b.txt"
	if err := upload(ctx, url, token, path, "one two"); err != nil {
		return err
	}
	if _, err := as[*execd.Empty](daemon.ReplaceInFiles(ctx, execd.ReplacementByPath{path: {Old: "two", New: "three"}})); err != nil {
		return fmt.Errorf("replace: %w", err)
	}
	infos, err := as[*execd.FileInfoByPath](daemon.GetFilesInfo(ctx, execd.GetFilesInfoParams{Path: []execd.Path{path}}))
	if err != nil || (*infos)[path].Size != int64(len("one three")) || (*infos)[path].Mode != 640 {
		return fmt.Errorf("info: %+v, %w", infos, err)
	}
	whole, err := as[*execd.DownloadFileOKHeaders](daemon.DownloadFile(ctx, execd.DownloadFileParams{Path: path}))
	if err != nil {
		return err
	}
	if content, err := io.ReadAll(whole.Response); err != nil || string(content) != "one three" {
		return fmt.Errorf("download: %q, %w", content, err)
	}
	part, err := as[*execd.DownloadFilePartialContentHeaders](daemon.DownloadFile(ctx, execd.DownloadFileParams{Path: path, Range: execd.NewOptString("bytes=4-")}))
	if err != nil || part.ContentRange != "bytes 4-8/9" {
		return fmt.Errorf("range: %+v, %w", part, err)
	}
	missing, err := as[*execd.DownloadFileNotFound](daemon.DownloadFile(ctx, execd.DownloadFileParams{Path: "/tmp/ogen/none"}))
	if err != nil || missing.Code != "FILE_NOT_FOUND" {
		return fmt.Errorf("a missing file: %+v, %w", missing, err)
	}
	return nil
}

// upload is written by hand: the generated one sends the file before its metadata, and the contract
// wants them the other way round.
func upload(ctx context.Context, url, token, path, content string) error {
	metadata, err := json.Marshal(map[string]any{"path": path, "mode": 640})
	if err != nil {
		return err
	}
	const boundary = "a-boundary-of-this-upload"
	var body bytes.Buffer
	fmt.Fprintf(&body, "--%s\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n%s\r\n", boundary, metadata)
	fmt.Fprintf(&body, "--%s\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n%s\r\n--%s--\r\n", boundary, content, boundary)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/files/upload", &body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
	request.Header.Set("X-EXECD-ACCESS-TOKEN", token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("upload: %s: %s", response.Status, text)
	}
	return nil
}
