// The network example finds out what a command reaches on the network, and then lets a sandbox
// reach that and nothing else.
//
//	go run ./examples/network [-image IMAGE] [COMMAND [OTHER]]
//
// COMMAND runs in a sandbox without a policy, which records what it reaches. With the allow-list of
// that, COMMAND and OTHER run in a second sandbox. The service needs an egress sidecar
// (egress.image, docs/network.md).
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"time"

	sandbox "sandbox.internal/clients/go"
)

const commandTime = time.Minute

func main() {
	image := flag.String("image", "sandbox/base:dev", "image that has the commands")
	flag.Parse()
	command, other := "curl -sSo /dev/null https://example.org/", "curl -sSo /dev/null https://example.com/"
	if flag.NArg() > 0 {
		command = flag.Arg(0)
	}
	if flag.NArg() > 1 {
		other = flag.Arg(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *image, command, other); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, image, command, other string) error {
	client, err := sandbox.New(nil)
	if err != nil {
		return err
	}
	defer client.Close()
	policy, err := learn(ctx, client, image, command)
	if err != nil {
		return err
	}
	fmt.Println("allowed from now on:")
	for _, rule := range policy.Egress {
		fmt.Printf("  %s\n", rule.Target)
	}
	return enforce(ctx, client, image, policy, command, other)
}

// learn returns the smallest policy with which the command reaches what it reaches without one.
func learn(ctx context.Context, client *sandbox.Client, image, command string) (
	policy sandbox.NetworkPolicy, err error) {
	box, err := client.Create(ctx, &sandbox.CreateOptions{Image: image, Memory: "256Mi"})
	if box != nil {
		defer func() { _ = box.Delete(context.WithoutCancel(ctx)) }()
	}
	if err != nil {
		return policy, err
	}
	if err := try(ctx, box, command); err != nil {
		return policy, err
	}
	return box.Network.Propose(ctx)
}

// enforce runs the commands under the policy, and prints what it allowed and denied.
func enforce(ctx context.Context, client *sandbox.Client, image string,
	policy sandbox.NetworkPolicy, commands ...string) error {
	box, err := client.Create(ctx, &sandbox.CreateOptions{Image: image, Memory: "256Mi",
		NetworkPolicy: &policy})
	if box != nil {
		defer func() { _ = box.Delete(context.WithoutCancel(ctx)) }()
	}
	if err != nil {
		return err
	}
	for _, command := range commands {
		if err := try(ctx, box, command); err != nil {
			return err
		}
	}
	decisions, err := box.Network.Decisions(ctx)
	if err != nil {
		return err
	}
	fmt.Println("decisions:")
	for _, decision := range decisions {
		fmt.Printf("  %-5s  %s\n", decision.Action, strconv.QuoteToASCII(decision.Target))
	}
	return nil
}

// try runs a command and prints how it ended. It succeeds when the command fails.
func try(ctx context.Context, box *sandbox.Sandbox, command string) error {
	result, err := box.Commands.Run(ctx, command, &sandbox.RunOptions{Timeout: commandTime})
	if err != nil {
		return err
	}
	verdict := "works"
	if err := result.Err(); err != nil {
		verdict = err.Error()
	}
	fmt.Printf("%s: %s\n", command, verdict)
	return nil
}
