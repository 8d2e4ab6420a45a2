"""What an operator may set where HTCondor's command-line tools are used."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from adapters.shared.commands.settings import SshSettings


class ToolsSettings(BaseModel):
    """``condor_q``, ``condor_status``, ``condor_submit``, ``condor_rm``, ``condor_transfer_data``: where and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(
        default="",
        pattern=r"^(/[A-Za-z0-9._+@=-]+)*$",
        description="Directory that holds the tools. Default: found on PATH there.",
        examples=["/opt/condor/bin"],
    )
    condor_config: str = Field(
        default="",
        pattern=r"^(/[A-Za-z0-9._+@=-]+)*$",
        description="Configuration file for the tools (CONDOR_CONFIG). Default: the one made from `token` and"
        " `token_directory` where these are set and the tools run on the controller's host, else HTCondor's own.",
        examples=["/etc/condor/condor_config"],
    )
    ssh: SshSettings | None = Field(
        default=None,
        description="Login node that the tools are run on, as its user, with the tokens that it has there."
        " Default: the controller's host.",
    )
    directory: str = Field(
        default="provisioner",
        pattern=r"^/?[A-Za-z0-9_][A-Za-z0-9._+@=-]*(/[A-Za-z0-9_][A-Za-z0-9._+@=-]*)*$",
        description="Directory on the login node, from the user's home, that takes the place of `work_directory`: for"
        " what drones take along and what they leave. Made if missing.",
    )
