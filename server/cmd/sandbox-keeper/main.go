// Command sandbox-keeper starts and reaps the containers of the local engine on a host. The service
// starts it and may be restarted while it runs; see package keeper.
package main

import (
	"os"

	"sandbox.internal/runtime/oci/keeper"
)

func main() { os.Exit(keeper.Main(os.Args[1:])) }
