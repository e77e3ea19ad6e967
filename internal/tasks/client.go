package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"sandbox.internal/wire/sandboxhttp"
)

// MaxAnswer bounds what is read of an answer, in bytes: an executor shortens the messages of a list
// that is larger. It is in the sandbox's reach: a larger answer is an error.
const MaxAnswer = 128 << 10

// Client talks to one task-executor. Methods may be called concurrently. An answer other than
// success is an *Error; any other error means that the executor was not reached, or said what
// cannot be understood.
type Client struct {
	// BaseURL is where the executor is, such as http://10.0.0.7:5758.
	BaseURL string
	// Token is the executor's token; empty when it has none.
	Token string
	// Sign, unless nil, makes the token for a challenge of the executor (see Prove) in the place of
	// Token.
	Sign func(ctx context.Context, challenge string) (token string, err error)
	// HTTP does the requests, see NewHTTP; nil means one that makes a connection for each request.
	// The client's timeout, if it has one, must be longer than what Wait and Delete are asked to
	// wait for.
	HTTP *http.Client

	proof atomic.Pointer[string] // the token for the latest challenge
}

// NewHTTP returns what does a Client's requests. It keeps that many idle connections to each
// executor.
func NewHTTP(idleConnections int) *http.Client {
	return sandboxhttp.NewClient(sandboxhttp.Options{IdleConnections: idleConnections, MaxAnswer: MaxAnswer})
}

// Put makes sure that the task exists and returns its status. Repeating it is harmless. It returns
// CodeTaskDiffers when there is another task of that name, CodeTaskDeleting while an earlier one is
// still ending, CodeTooManyTasks, CodeResetting and CodeInvalidRequest.
func (c *Client) Put(ctx context.Context, name string, task Task) (Status, error) {
	var status Status
	_, err := c.do(ctx, http.MethodPut, taskPath(name), nil, task, &status)
	return status, err
}

// Get returns the status of a task, or CodeNotFound.
func (c *Client) Get(ctx context.Context, name string) (Status, error) {
	var status Status
	_, err := c.do(ctx, http.MethodGet, taskPath(name), nil, nil, &status)
	return status, err
}

// List returns the status of all tasks as they are now.
func (c *Client) List(ctx context.Context) (List, error) {
	var list List
	_, err := c.do(ctx, http.MethodGet, "/tasks", nil, nil, &list)
	return list, err
}

// Wait returns the status of all tasks as soon as the list's version is another than since, or when
// wait, at most MaxWait, has passed.
func (c *Client) Wait(ctx context.Context, since int64, wait time.Duration) (List, error) {
	query := waitQuery(wait)
	query.Set("since", strconv.FormatInt(since, 10))
	var list List
	_, err := c.do(ctx, http.MethodGet, "/tasks", query, nil, &list)
	return list, err
}

// Delete ends a task and makes the executor forget it. It reports whether that is done: after wait,
// at most MaxWait, it may still be going on, and goes on by itself. A task that does not exist is
// gone.
func (c *Client) Delete(ctx context.Context, name string, wait time.Duration) (gone bool, err error) {
	code, err := c.do(ctx, http.MethodDelete, taskPath(name), waitQuery(wait), nil, nil)
	return err == nil && code == http.StatusNoContent, err
}

// Reset ends all tasks at once and without grace, makes the executor forget them, and kills every
// process of the main container, so that the kubelet starts it again. It returns CodeMainIsProcess1
// and CodeResetting.
func (c *Client) Reset(ctx context.Context) (ResetResult, error) {
	var result ResetResult
	_, err := c.do(ctx, http.MethodPost, "/reset", nil, nil, &result)
	return result, err
}

func taskPath(name string) string { return "/tasks/" + url.PathEscape(name) }

// waitQuery rounds up, so that a short wait does not become none.
func waitQuery(wait time.Duration) url.Values {
	seconds := int64((min(max(wait, 0), MaxWait) + time.Second - 1) / time.Second)
	return url.Values{"wait": {strconv.FormatInt(seconds, 10)}}
}

// do returns the HTTP status of a success.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, body, answer any) (int, error) {
	code, challenge, err := c.exchange(ctx, method, path, query, body, answer)
	if c.Sign != nil && HasCode(err, CodeUnauthorized) && challenge != "" && len(challenge) <= maxChallenge {
		var token string
		if token, err = c.Sign(ctx, challenge); err == nil {
			c.proof.Store(&token)
			code, _, err = c.exchange(ctx, method, path, query, body, answer)
		}
	}
	if e := (*Error)(nil); err != nil && !errors.As(err, &e) {
		err = fmt.Errorf("task-executor: %s %s: %w", method, path, err)
	}
	return code, err
}

// token is what opens the executor, as far as that is known.
func (c *Client) token() string {
	if proof := c.proof.Load(); proof != nil {
		return *proof
	}
	return c.Token
}

// exchange sends the request once. It also returns the challenge of an executor that refuses it.
func (c *Client) exchange(ctx context.Context, method, path string, query url.Values, body, answer any) (code int, challenge string, err error) {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, "", err
		}
		content = bytes.NewReader(data)
	}
	target := strings.TrimSuffix(c.BaseURL, "/") + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return 0, "", err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if token := c.token(); token != "" {
		request.Header.Set(TokenHeader, token)
	}
	client := c.HTTP
	if client == nil {
		client = NewHTTP(0)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, "", fmt.Errorf("read the answer: %w", err)
	}
	if response.StatusCode >= 300 {
		refusal := &Error{Status: response.StatusCode}
		if err := json.Unmarshal(data, refusal); err != nil || refusal.Code == "" {
			return 0, "", fmt.Errorf("%s, and not from a task-executor", response.Status)
		}
		// The port may have been taken by the sandbox's own program.
		refusal.Code, refusal.Message = sandboxhttp.Quote(refusal.Code), sandboxhttp.Quote(refusal.Message)
		return 0, response.Header.Get(ChallengeHeader), refusal
	}
	if answer != nil {
		if err := json.Unmarshal(data, answer); err != nil {
			return 0, "", errors.New("the answer is not a task-executor's")
		}
	}
	return response.StatusCode, "", nil
}
